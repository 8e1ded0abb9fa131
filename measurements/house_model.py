"""A house in winter with three devices that report once a minute as zigbee2mqtt does, and faults of stated sizes.

The weather (slow, correlated), two people (their days differ, weekends more so, now and then they are away) and a
heat pump drive everything: the devices agree with each other and with themselves because physics makes them.

    climate    temperature, humidity, pressure, battery of a living room that is aired, cooked in, heated by the sun
    plug       power, current, voltage of a fridge, a television and a computer
    heating    flow, return, setpoint, position: a heat pump, its valve, hot water, a lower set-point at night

Seven kinds of fault. Sizes are for climate's temperature and heating's return; for the plug's voltage 1 °C is 2.5 V:

    spike        8 °C off for 3 samples
    blip         8 °C off for one sample
    shift        4 °C off for 6 hours
    drift        off by up to 5 °C, growing for 12 hours
    decoupling   6 hours in which the plug's current or heating's return goes on as it did on another day, beginning
                 where it was (a current may jump, and jumps); not for climate, whose channels are hardly coupled from
                 minute to minute: there another day's values are as normal as the right ones
    stuck        4 hours without a change
    silent       3 hours without a message
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from fedkad.simulate.recursion import first_order_lag, wandering_noise
from measurements.measure import Array

MINUTE, DAY, WEEK = 60.0, 1440, 10_080
"""Seconds between rows, and rows in a day and in a week."""

BEGAN = 1_767_571_200.0
"""Monday, 5 January 2026."""

LOST = 1e-3
"""Share of the messages that the radio loses."""

DECIMALS: Mapping[str, Mapping[str, int]] = {
    "climate": {"temperature": 2, "humidity": 2, "pressure": 1, "battery": 0},
    "plug": {"power": 0, "current": 2, "voltage": 0},
    "heating": {"flow": 1, "return": 1, "setpoint": 1, "position": 0},
}
"""The channels of each device, with the decimals that such devices report."""

DURATIONS = {"spike": 3, "blip": 1, "shift": 360, "drift": 720, "decoupling": 360, "stuck": 240, "silent": 180}
FAULTY = {"climate": ("temperature", 1.0), "plug": ("voltage", 2.5), "heating": ("return", 1.0)}
DECOUPLED = {"plug": "current", "heating": "return"}
INPUTS = {"heating": ("setpoint", "position")}
"""Commands, which an owner names as `inputs` of a device's detector."""

Rows = dict[str, Array]
"""The values of a device by channel."""


@dataclass(frozen=True)
class HouseFault:
    """A fault of one channel in the rows start … end − 1; one that is silent is of the whole device."""

    kind: str
    device: str
    channel: str
    start: int
    end: int


@dataclass(frozen=True)
class House:
    """What the devices measure, which of their messages arrive, and what is wrong in them."""

    rows: Mapping[str, Rows]
    arrives: Mapping[str, np.ndarray[tuple[int], np.dtype[np.bool_]]]
    faults: tuple[HouseFault, ...] = ()

    def messages(self, row: int) -> Iterator[tuple[str, dict[str, float]]]:
        """The messages of one minute, by device."""
        for device, channels in self.rows.items():
            if self.arrives[device][row]:
                yield device, {name: float(values[row]) for name, values in channels.items()}


def simulate_house(seed: int, days: int, warmer_from: int | None = None) -> House:
    """A house without faults; from the row `warmer_from` on its set-point is 3 °C higher, with the same weather."""
    weather_seed, people_seed, sensor_seed, loss_seed = np.random.SeedSequence(seed).spawn(4)
    weather = _weather(days, np.random.default_rng(weather_seed))
    people = _people(days, np.random.default_rng(people_seed))
    if warmer_from is not None:
        people["setpoint"][warmer_from:] += 3.0
    rooms = _rooms(weather, people)
    measured = _sensors(weather, people, rooms, np.random.default_rng(sensor_seed))
    rounded = {
        device: {name: np.round(measured[name], decimals) + 0.0 for name, decimals in channels.items()}
        for device, channels in DECIMALS.items()
    }
    lost = np.random.default_rng(loss_seed)
    return House(rounded, {device: lost.random(days * DAY) >= LOST for device in DECIMALS})


def _weather(days: int, generator: np.random.Generator) -> Rows:
    """Outside: fronts of days, clouds of hours, the sun, a winter that ends."""
    rows, hour = days * DAY, np.arange(days * DAY) / 60.0
    fronts, cover, mass, wind = wandering_noise(rows, (3 * 86400.0, 5 * 3600.0, 86400.0, 7200.0), MINUTE, generator).T
    fronts, mass = (first_order_lag(each, 4 * 3600.0, MINUTE, float(each[0])) for each in (fronts, mass))
    clear = 1.0 / (1.0 + np.exp(1.5 * cover + 0.8 * mass))
    height = np.sin(np.pi * (hour % 24 - 7.5) / 10.0)
    sun = clear * np.where(height > 0.0, height, 0.0)
    outside = 1.0 + hour / 24 / 10.0 + 3.5 * fronts + (1.0 + 3.5 * clear) * np.cos(2 * np.pi * (hour - 15) / 24)
    vapour = saturation(outside) * np.clip(0.85 - 0.2 * clear + 0.05 * wind, 0.4, 1.0)
    return {"outside": outside, "sun": sun, "vapour": vapour, "pressure": 1013.0 - 5.0 * fronts - 6.0 * mass}


def saturation(celsius: Array) -> Array:
    """Grams of water in a cubic metre of saturated air (Magnus)."""
    return np.asarray(216.7 * 6.112 * np.exp(17.62 * celsius / (243.12 + celsius)) / (273.15 + celsius))


def _people(days: int, generator: np.random.Generator) -> Rows:
    """What two people do: who is at home and awake, showers, cooking, airing, television, computer, set-point."""
    names = ("home", "awake", "shower", "cooking", "airing", "television", "computer", "hot_water", "setpoint")
    done = {name: np.zeros(days * DAY) for name in names}
    done["home"] += 2.0
    done["setpoint"] += 18.0

    def during(name: str, begin: float, minutes: float, amount: float = 1.0) -> None:
        start = max(round(begin), 0)
        done[name][start : start + max(round(minutes), 0)] += amount

    for day in range(days):
        midnight, weekend = day * DAY, day % 7 >= 5
        if day % 7 == 5:
            is_trip = generator.random() < 0.12
        is_away = weekend and is_trip
        warm, cool = (450, 1380) if weekend else (360, 1350)
        during("setpoint", midnight + warm, cool - warm, 3.0)
        if generator.random() < 0.15 and not is_away:  # somebody feels cold
            during("setpoint", midnight + generator.normal(1170, 40), generator.uniform(60, 240), 1.0)
        during("hot_water", midnight + 270 + generator.normal(0, 3), 35)
        for _ in range(2):
            wake = midnight + (generator.normal(510, 45) if weekend else generator.normal(405, 15))
            sleep = midnight + generator.normal(1390, 30)
            shower, works_at_home, goes_out = generator.random(3) < (0.8, 0.25, 0.2)
            leave, back, outing = (
                wake + generator.normal(65, 10),
                midnight + generator.normal(1035, 40),
                generator.random(),
            )
            if is_away:
                during("home", midnight, DAY, -1.0)
                continue
            during("awake", wake, sleep - wake)
            if shower:
                during("shower", wake + 10, generator.uniform(6, 14))
            if weekend:
                leave, back = midnight + 600 + 240 * outing, midnight + 700 + 500 * outing
            elif works_at_home:
                during("computer", wake + generator.normal(90, 15), generator.normal(460, 40))
            if weekend or not works_at_home:
                during("home", leave, back - leave, -1.0)
            if goes_out:
                during("home", midnight + generator.normal(1180, 20), generator.normal(170, 30), -1.0)
        cooks, watches, airs, airs_late = generator.random(4) < (0.8, 0.75, 0.6, 0.3)
        times = generator.normal((1115, 1190, 435 + 90 * weekend, 1330), (25, 30, 30, 40)) + midnight
        lengths = generator.uniform((20, 60, 4, 4), (50, 210, 12, 10))
        for name, happens, begin, minutes in zip(
            ("cooking", "television", "airing", "airing"),
            (cooks, watches, airs, airs_late),
            times,
            lengths,
            strict=True,
        ):
            if happens and not is_away:
                during(name, begin, minutes)
                if name == "cooking":
                    during("hot_water", begin + minutes, 25)
    at_home = done["home"] > 0.0
    for name in ("awake", "shower", "cooking", "airing", "television", "computer"):
        done[name] = np.minimum(done[name], 2.0) * at_home
    return done


def _rooms(weather: Rows, people: Rows) -> Rows:
    """Air, walls, vapour, valve, heat pump and fridge, minute by minute."""
    outside, sun, vapour, setpoint = (each.tolist() for each in (*list(weather.values())[:3], people["setpoint"]))
    home, awake, shower, cooking, airing = (
        people[name].tolist() for name in ("home", "awake", "shower", "cooking", "airing")
    )
    hot_water = people["hot_water"].tolist()
    air, wall, moisture, flow, back, valve, integral, chill = 20.0, 18.0, 7.5, 38.0, 33.0, 40.0, 40.0, 4.5
    pumps = cools = True
    names = ("air", "moisture", "flow", "return", "position", "cooling")
    kept = np.empty((len(outside), len(names)))
    for t in range(len(outside)):
        draught = 1 / 600 + (airing[t] > 0) / 45
        error = setpoint[t] - air
        integral = min(max(integral + 0.15 * error, 0.0), 80.0)
        wanted = min(max(integral + 30.0 * error, 0.0), 100.0)
        if abs(wanted - valve) > 3.0:  # its motor is spared
            valve = wanted
        target = 52.0 if hot_water[t] else min(max(34.0 + 0.7 * (15.0 - outside[t]), 26.0), 50.0)
        pumps = flow < target + 2.0 if pumps else flow < target - 2.0
        flow += (0.9 if hot_water[t] else 0.35) if pumps else -0.02 * (flow - air) * (0.3 + valve / 100)
        emitted = valve / 100 * (flow - air)
        back += ((flow - 1.5 - 0.3 * emitted) - back) / 5.0
        heat = 0.007 * emitted + 0.02 * sun[t] + 0.003 * home[t] + 0.002 * awake[t] + 0.02 * cooking[t]
        air += (wall - air) / 60 + draught * (outside[t] - air) + heat
        wall += (air - wall) / 1500 + (outside[t] - wall) / 12_000 + 0.001 * sun[t]
        moisture += (vapour[t] - moisture) * (1 / 150 + (airing[t] > 0) / 18)
        moisture += 0.006 * home[t] + 0.12 * shower[t] + 0.04 * cooking[t]
        cools = chill > 3.0 if cools else chill > 6.0
        chill += (-0.18 if cools else 0.0045 * (air - chill)) + (0.05 * cooking[t] + 0.01 * awake[t])
        kept[t] = air, moisture, flow, back, valve, cools
    return dict(zip(names, kept.T, strict=True))


def _sensors(weather: Rows, people: Rows, rooms: Rows, generator: np.random.Generator) -> Rows:
    """What the sensors make of it: lags, noise, losses of a battery; not rounded."""
    rows = len(weather["outside"])
    slow, tone, screen, line, supply = wandering_noise(rows, (43200.0, 20.0, 900.0, 7200.0, 300.0), MINUTE, generator).T
    noise = iter(generator.standard_normal((8, rows)))
    hour = np.arange(rows) / 60.0
    felt = first_order_lag(rooms["air"] + 0.3 * weather["sun"], 480.0, MINUTE, 20.0)
    humidity = first_order_lag(100.0 * rooms["moisture"] / saturation(felt), 200.0, MINUTE, 45.0)
    fridge = rooms["cooling"] * (88.0 + 3.0 * tone + 25.0 * (np.diff(rooms["cooling"], prepend=0.0) > 0.0))
    television = (people["television"] > 0) * (105.0 + 12.0 * screen)
    computer = people["computer"] * (58.0 + 9.0 * screen)
    power = 4.0 + fridge + television + computer
    apparent = 7.0 + fridge / 0.78 + television / 0.95 + computer / 0.92
    load = 1.5 * np.exp(-0.5 * ((hour % 24 - 19) / 2.0) ** 2) - 1.5 * weather["sun"]
    voltage = 231.0 - load + 0.9 * line + 0.5 * supply - 0.004 * power + 0.4 * next(noise)
    return {
        "temperature": felt + 0.03 * next(noise),
        "humidity": np.clip(humidity + 0.12 * next(noise), 0.0, 100.0),
        "pressure": weather["pressure"] + 0.06 * next(noise),
        "battery": 97.0 - 0.035 * hour / 24 + 0.15 * (felt - 20.0) + 0.2 * slow,
        "power": np.maximum(power * (1.0 + 0.006 * next(noise)), 0.0),
        "current": np.maximum(apparent / voltage + 0.004 * next(noise), 0.0),
        "voltage": voltage,
        "flow": rooms["flow"] + 0.08 * next(noise),
        "return": rooms["return"] + 0.08 * next(noise),
        "setpoint": people["setpoint"],
        "position": rooms["position"],
    }


def with_faults(house: House, seed: int, begin: int, repeats: int) -> House:
    """The same house with every kind of fault `repeats` times per device, from the row `begin` on, far apart."""
    faults: list[HouseFault] = []
    rows = {device: dict(channels) for device, channels in house.rows.items()}
    arrives = {device: each.copy() for device, each in house.arrives.items()}
    for device, channels in rows.items():
        generator = np.random.default_rng([seed, len(faults)])
        own = [kind for kind in DURATIONS if kind != "decoupling" or device in DECOUPLED]
        kinds = generator.permutation(own * repeats).tolist()
        length = len(arrives[device])
        slot = (length - begin) // len(kinds)
        for k, kind in enumerate(kinds):
            spare = max(slot // 2 - DURATIONS[kind], 1)
            start = begin + k * slot + slot // 4 + int(generator.integers(spare))
            fault = HouseFault(kind, device, "", start, min(start + DURATIONS[kind], length))
            if kind == "silent":
                arrives[device][fault.start : fault.end] = False
            else:
                fault = replace(fault, channel=DECOUPLED[device] if kind == "decoupling" else FAULTY[device][0])
                values = channels[fault.channel].copy()
                values[fault.start : fault.end] = _faulty(fault, channels[fault.channel], generator)
                channels[fault.channel] = np.round(values, DECIMALS[device][fault.channel]) + 0.0
            faults.append(fault)
    return House(rows, arrives, tuple(faults))


def _faulty(fault: HouseFault, values: Array, generator: np.random.Generator) -> Array:
    """What is reported instead of the values of the fault's rows."""
    here, length = values[fault.start : fault.end], fault.end - fault.start
    size = FAULTY[fault.device][1] * generator.choice([-1.0, 1.0])
    if fault.kind == "stuck":
        return np.full(length, values[fault.start - 1])
    if fault.kind == "decoupling":
        away = int(generator.integers(2, 6)) * DAY
        other = fault.start + away if fault.end + away < len(values) else fault.start - away
        other = max(other, 1)
        begins = 0.0 if fault.channel == "current" else values[fault.start - 1] - values[other - 1]
        return np.asarray(values[other : other + length] + begins)
    if fault.kind == "drift":
        return np.asarray(here + 5.0 * size * np.arange(1, length + 1) / length)
    return np.asarray(here + (4.0 if fault.kind == "shift" else 8.0) * size)
