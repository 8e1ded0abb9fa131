"""The physics of one simulated pump: motor, pump, valve, pipe, heat and vibration.

A variable-speed motor drives a centrifugal pump that lifts water through a control valve. All pumps obey the
same equations and differ in their parameters, their duty and their surroundings. The quantities in the
equations are fractions of the rated ones:

========  =====================================================================
``s``     speed, of the rated speed
``q``     flow, of the rated flow
``h``     head, of the head at zero flow and rated speed
``v``     opening of the valve, 0 to 1
``i``     motor current, of the rated current
========  =====================================================================
"""

import math
from dataclasses import dataclass

import numpy as np

from fedkad.simulate.recursion import FloatArray, first_order_lag, wandering_noise

CHANNELS = (
    "speed_rpm",
    "flow_m3h",
    "pressure_bar",
    "valve_pct",
    "current_a",
    "vibration_mms",
    "bearing_temp_c",
    "motor_temp_c",
)
"""The channels of every device, in the order of the columns; a name ends in the unit."""

_BAR_PER_METRE = 0.0981  # 1000 kg/m³ times 9.81 m/s², in bar
_VOLTS = 400.0
_POWER_FACTOR = 0.85
_MOTOR_EFFICIENCY = 0.92
_PUMP_EFFICIENCY = 0.72
_FRICTION_SHARE = 0.15  # of the rated hydraulic power, lost in discs and seals at rated speed
_MAGNETISING_SHARE = 0.35  # of the rated active current
_CURVE_DROP = 0.2  # of the head at zero flow, lost inside the pump at rated flow
_USUAL_STATIC_HEAD = 0.15  # of the head at zero flow, to which the pipe is dimensioned
_RATED_OPENING = 0.7  # of the valve, at which the rated speed gives the rated flow
_DAY = 86400.0
_MEAN_CROSSING = 9 * 3600.0  # the daily mean is crossed upwards at nine o'clock
_SHORTEST_SHARE = 0.6  # of the mean dwell, that a step of a duty lasts; the longest is its mirror image above it


@dataclass(frozen=True)
class Duty:
    """A repeated sequence of levels, as fractions of the rated value, and the mean time at one level in seconds."""

    levels: tuple[float, ...]
    dwell: float


def follow_duty(duty: Duty, rows: int, period: float, generator: np.random.Generator) -> FloatArray:
    """Return the set level at every sample.

    The order of the levels is fixed and their lengths vary: each lasts ``dwell`` times a number uniform in
    [0.6, 1.4], and the series begins somewhere inside a first step.

    >>> generator = np.random.Generator(np.random.PCG64(0))
    >>> follow_duty(Duty(levels=(0.5, 1.0), dwell=180.0), 8, 60.0, generator)
    array([1. , 1. , 0.5, 0.5, 1. , 1. , 1. , 1. ])
    """
    steps = math.ceil(rows * period / (_SHORTEST_SHARE * duty.dwell)) + 2
    first = int(generator.integers(len(duty.levels)))
    elapsed = generator.random() * _SHORTEST_SHARE * duty.dwell
    lengths = duty.dwell * generator.uniform(_SHORTEST_SHARE, 2.0 - _SHORTEST_SHARE, steps)
    ends = np.cumsum(lengths) - elapsed
    step = np.searchsorted(ends, np.arange(rows) * period, side="right")
    return np.array(duty.levels)[(first + step) % len(duty.levels)]


@dataclass(frozen=True)
class Pump:
    """The parameters of one pump.

    Times are in seconds, temperatures in °C, vibration velocities in mm/s; the other units are in the names.
    """

    speed_duty: Duty
    valve_duty: Duty
    rated_rpm: float
    rated_m3h: float
    shutoff_head_m: float
    suction_bar: float
    static_head: float
    speed_lag: float
    flow_lag: float
    motor_rise: float
    motor_lag: float
    bearing_rise: float
    bearing_lag: float
    ambient_mean: float
    ambient_swing: float
    resonance: float
    damping: float
    unbalance: float
    turbulence: float


@dataclass(frozen=True)
class Disturbances:
    """What disturbs a pump from outside, each an array of shape (time,).

    Speed, static head and voltage are relative deviations, the valve is a deviation of ``v``, the weather
    one of the ambient temperature in °C. They enter before the physics, so that every channel downstream
    feels them together.
    """

    speed: FloatArray
    valve: FloatArray
    static_head: FloatArray
    voltage: FloatArray
    weather: FloatArray


# Standard deviation and time constant in seconds of each disturbance, in the order of the fields above.
_DISTURBANCE_SIZES = (0.004, 0.015, 0.08, 0.008, 0.6)
_DISTURBANCE_TIMES = (300.0, 900.0, 1800.0, 300.0, 14400.0)

# Of the noise of a sensor, which `read_sensors` adds, in the order of the channels.
_NOISE_FLOOR = np.array([0.0, 0.1, 0.01, 0.15, 0.06, 0.02, 0.12, 0.15])
_NOISE_GAIN = np.array([0.001, 0.006, 0.004, 0.0, 0.006, 0.04, 0.0, 0.0])
_NOISE_TIMES = (45.0, 45.0, 45.0, 90.0, 45.0, 60.0, 180.0, 180.0)


def draw_pump(generator: np.random.Generator) -> Pump:
    """Draw the parameters of a pump.

    >>> pump = draw_pump(np.random.Generator(np.random.PCG64(0)))
    >>> 40.0 <= pump.rated_m3h <= 160.0
    True
    """
    draw = generator.uniform
    return Pump(
        speed_duty=_draw_speed_duty(generator),
        valve_duty=Duty(levels=tuple(draw(0.5, 0.95, 3).tolist()), dwell=draw(3600.0, 10800.0)),
        rated_rpm=draw(1440.0, 1490.0) * (1 if generator.random() < 0.6 else 2),
        rated_m3h=draw(40.0, 160.0),
        shutoff_head_m=draw(30.0, 70.0),
        suction_bar=draw(0.4, 1.5),
        static_head=draw(0.08, 0.22),
        speed_lag=draw(60.0, 210.0),
        flow_lag=draw(45.0, 150.0),
        motor_rise=draw(35.0, 60.0),
        motor_lag=draw(1800.0, 4200.0),
        bearing_rise=draw(15.0, 30.0),
        bearing_lag=draw(900.0, 2100.0),
        ambient_mean=draw(17.0, 27.0),
        ambient_swing=draw(1.5, 4.0),
        resonance=draw(0.35, 0.55),
        damping=draw(0.12, 0.22),
        unbalance=draw(0.4, 1.0),
        turbulence=draw(0.8, 1.6),
    )


def _draw_speed_duty(generator: np.random.Generator) -> Duty:
    """Draw low, middle, high, middle; two pumps in five rest at the low level."""
    rests = generator.random() < 0.4
    running_low = generator.uniform(0.58, 0.7)
    middle = generator.uniform(0.74, 0.86)
    high = generator.uniform(0.9, 1.0)
    low = 0.0 if rests else running_low
    return Duty(levels=(low, middle, high, middle), dwell=generator.uniform(1800.0, 5400.0))


def run_pump(pump: Pump, rows: int, period: float, generator: np.random.Generator) -> FloatArray:
    """Simulate what the sensors of a pump report, beginning at midnight: the :data:`CHANNELS` in physical units.

    >>> generator = np.random.Generator(np.random.PCG64(0))
    >>> run_pump(draw_pump(generator), 100, 60.0, generator).shape
    (100, 8)
    """
    asked_speed = follow_duty(pump.speed_duty, rows, period, generator)
    asked_valve = follow_duty(pump.valve_duty, rows, period, generator)
    wandering = wandering_noise(rows, _DISTURBANCE_TIMES, period, generator) * _DISTURBANCE_SIZES
    disturbances = Disturbances(*wandering.T)
    return read_sensors(respond(pump, asked_speed, asked_valve, disturbances, period), period, generator)


def respond(
    pump: Pump, asked_speed: FloatArray, asked_valve: FloatArray, disturbances: Disturbances, period: float
) -> FloatArray:
    """Return the true state of a pump over time, before any sensor: the deterministic part of the plant.

    It follows the set points of ``s`` and ``v``; the columns are :data:`CHANNELS` in physical units.
    """
    set_point = asked_speed * (1.0 + disturbances.speed)
    speed = first_order_lag(set_point, pump.speed_lag, period, start=float(set_point[0]))
    valve = np.clip(asked_valve + disturbances.valve, 0.2, 1.0)
    steady_flow = operating_flow(speed, valve, pump.static_head * (1.0 + disturbances.static_head))
    flow = first_order_lag(steady_flow, pump.flow_lag, period, start=float(steady_flow[0]))
    head = np.maximum(speed * speed - _CURVE_DROP * flow * flow, 0.0)
    current = motor_current(speed, flow * head, disturbances.voltage)
    ambient = daily_ambient(pump, len(speed), period) + disturbances.weather
    motor = motor_temperature(pump, speed, current, ambient, period)
    bearing = bearing_temperature(pump, speed, current, motor - ambient, ambient, period)
    columns = (
        pump.rated_rpm * speed,
        pump.rated_m3h * flow,
        pump.suction_bar + _BAR_PER_METRE * pump.shutoff_head_m * head,
        100.0 * valve,
        rated_current(pump) * current,
        vibration(pump, speed, flow),
        bearing,
        motor,
    )
    return np.column_stack(columns)


def operating_flow(speed: FloatArray, valve: FloatArray, static_head: float | FloatArray) -> FloatArray:
    """Return the flow at which the pump curve meets the resistance of the pipe.

    The pump gives ``h = s² - c q²``; the pipe asks for ``h = h_static + r(v) q²`` with the resistance ``r(v)
    = r₀ (1/2 + 1/2 (v₀ / v)²)``, half of it in the pipe and half in the valve at its rated opening v₀. They
    meet at ``q² = (s² - h_static) / (c + r(v))``; below the static head the check valve shuts and q is 0.
    With ``r₀ = 1 - c - 0.15`` the rated speed gives about the rated flow.

    >>> operating_flow(np.array([0.0, 0.7, 1.0]), np.array([0.7, 0.7, 0.7]), 0.15).round(2)
    array([0.  , 0.63, 1.  ])
    """
    rated_resistance = 1.0 - _CURVE_DROP - _USUAL_STATIC_HEAD
    opening = _RATED_OPENING / valve
    resistance = rated_resistance * (0.5 + 0.5 * opening * opening)
    return np.sqrt(np.maximum(speed * speed - static_head, 0.0) / (_CURVE_DROP + resistance))


def rated_current(pump: Pump) -> float:
    """Return the active current in A at rated speed and flow: shaft power over √3 U cos φ η.

    Hydraulic power is flow times pressure: ``Q [m³/h] p [bar] / 36`` in kW.

    >>> 5.0 < rated_current(draw_pump(np.random.Generator(np.random.PCG64(0)))) < 100.0
    True
    """
    rated_bar = _BAR_PER_METRE * pump.shutoff_head_m * (1.0 - _CURVE_DROP)
    watts = 1000.0 * (pump.rated_m3h * rated_bar / 36.0) * (1.0 / _PUMP_EFFICIENCY + _FRICTION_SHARE)
    return watts / (math.sqrt(3.0) * _VOLTS * _POWER_FACTOR * _MOTOR_EFFICIENCY)


def motor_current(speed: FloatArray, hydraulic: FloatArray, voltage: FloatArray) -> FloatArray:
    """Return the motor current ``i`` for the load on the shaft.

    The active part is the shaft power ``P = q h / (q h)_rated / η + f s³`` over its rated value, divided by
    the relative voltage; it adds at a right angle to the magnetising part, which a motor at rest does not
    draw: ``i² = (P / P_rated / (1 + u))² + (m min(s / 0.2, 1))²``. Here ``q h`` is the hydraulic power and u the
    relative deviation of the supply's voltage.

    >>> motor_current(np.array([0.0, 1.0]), np.array([0.0, 0.8]), np.zeros(2)).round(2)
    array([0.  , 1.06])
    """
    shaft = hydraulic / (1.0 - _CURVE_DROP) / _PUMP_EFFICIENCY + _FRICTION_SHARE * speed * speed * speed
    active = shaft / (1.0 / _PUMP_EFFICIENCY + _FRICTION_SHARE) / (1.0 + voltage)
    magnetising = _MAGNETISING_SHARE * np.minimum(speed / 0.2, 1.0)
    return np.sqrt(active * active + magnetising * magnetising)


def daily_ambient(pump: Pump, rows: int, period: float) -> FloatArray:
    """Return the temperature around the pump: a daily sine that crosses its mean upwards at nine o'clock."""
    phase = 2.0 * np.pi * (np.arange(rows) * period - _MEAN_CROSSING) / _DAY
    ambient: FloatArray = pump.ambient_mean + pump.ambient_swing * np.sin(phase)
    return ambient


def motor_temperature(
    pump: Pump, speed: FloatArray, current: FloatArray, ambient: FloatArray, period: float
) -> FloatArray:
    """Return the winding temperature in °C: ``τ dT/dt = ambient + rise (0.7 i² + 0.3 s²) - T``.

    Copper losses go with the square of the current, iron losses with the square of the speed.
    """
    losses = 0.7 * current * current + 0.3 * speed * speed
    target = ambient + pump.motor_rise * losses
    return first_order_lag(target, pump.motor_lag, period, start=float(target.mean()))


def bearing_temperature(
    pump: Pump,
    speed: FloatArray,
    current: FloatArray,
    motor_excess: FloatArray,
    ambient: FloatArray,
    period: float,
) -> FloatArray:
    """Return the bearing temperature in °C.

    It obeys ``τ dT/dt = ambient + 0.2 (T_motor - ambient) + rise s (0.6 + 0.4 i) - T``: friction goes with
    speed and with the load on the bearing; the shaft conducts a fifth of the motor's excess.
    """
    target = ambient + 0.2 * motor_excess + pump.bearing_rise * speed * (0.6 + 0.4 * current)
    return first_order_lag(target, pump.bearing_lag, period, start=float(target.mean()))


def vibration(pump: Pump, speed: FloatArray, flow: FloatArray) -> FloatArray:
    """Return the vibration velocity in mm/s (RMS).

    Three independent sources add in power: the surroundings (0.25 mm/s); the unbalance of the rotor seen
    through a resonance, ``u s r² / sqrt((1 - r²)² + (2 ζ r)²)`` with ``r = s / resonance`` (displacement
    times speed); and the turbulence ``w s (s + |q - s|)``, stronger where the flow does not fit the speed.

    >>> pump = draw_pump(np.random.Generator(np.random.PCG64(0)))
    >>> at_rest, resonant = vibration(pump, np.array([0.0, pump.resonance]), np.zeros(2))
    >>> bool(at_rest == 0.25 and resonant > 2 * at_rest)
    True
    """
    ratio = speed / pump.resonance
    square = ratio * ratio
    damped = 2.0 * pump.damping * ratio
    amplification = square / np.sqrt((1.0 - square) * (1.0 - square) + damped * damped)
    unbalance = pump.unbalance * speed * amplification
    turbulence = pump.turbulence * speed * (speed + np.abs(flow - speed))
    felt: FloatArray = np.sqrt(0.25 * 0.25 + unbalance * unbalance + turbulence * turbulence)
    return felt


def read_sensors(state: FloatArray, period: float, generator: np.random.Generator) -> FloatArray:
    """Add to every channel the noise of its sensor and keep the reading within the range of the transmitter.

    ``x + (floor + gain x) e`` with e an AR(1) of its own for each channel; no reading is negative, and the
    valve reads at most 100 %.
    """
    noise = wandering_noise(len(state), _NOISE_TIMES, period, generator)
    readings = np.maximum(state + (_NOISE_FLOOR + _NOISE_GAIN * state) * noise, 0.0)
    valve = CHANNELS.index("valve_pct")
    readings[:, valve] = np.minimum(readings[:, valve], 100.0)
    return readings
