"""Measurements of speed and behaviour; how well FedKAD detects is the question of the benchmark, `fedkad_bench`.

Each module prints ratios measured in one run, against the bare operation or the alternative.

python -m measurements.statistics      the statistics of one server, against snapshot matrices
python -m measurements.client_round    five local steps, against the same steps on snapshot matrices
python -m measurements.federation      a whole federation, against the bare matrix products it needs
python -m measurements.scoring         batch scoring, against its bare matrix products
python -m measurements.optimisation    the objective after five rounds, against a centralised solver
python -m measurements.paper_curves    the paper's convergence curves, against every reading of what it leaves open
python -m measurements.engines         DuckDB, pyarrow, polars and pandas on ugly files, a million rows, and weight
python -m measurements.reading         a million rows: reading against pandas, fit and detect against the computation
python -m measurements.importing       seconds and modules of the import of the public names
python -m measurements.scores          the constants of the score, on the data they were chosen on
python -m measurements.admission       a new device with few samples: admitted, alone, and with all its data
python -m measurements.encodings       bytes against the objective, for every encoding
python -m measurements.scale           the server's seconds and memory with 100, 1,000 and 10,000 clients
python -m measurements.robust          what robust aggregation costs and saves under attack
python -m measurements.privacy         what masks and noise cost
python -m measurements.fleet           eight processes over TLS, two kills, a latecomer, against one process
python -m measurements.overhead        a round over Flower, against an empty Flower app
python -m measurements.notice          10,000 emulated devices that follow the notice, beside trainings of eight
python -m measurements.registered      the list of 10,000 to 1,000,000 devices: memory, and what a change takes
python -m measurements.fleet_units     the units of a server and a device under a real systemd, killed and hung
python -m measurements.systemd         the unit of an agent under a real systemd, killed and hung
python -m measurements.edge            the agent on a device, against its budgets of memory, processor time and start;
                                       with --fleet only what following the notice of a fleet adds
python -m measurements.house           the agent's alarms over twelve weeks in a house, against a budget of one a week
python -m measurements.walks           how many functions lie between a sample and its alarm, by tracing real calls
python -m measurements.servers         the agent's alarms on real servers, against the same budget
python -m measurements.hours           whether the hour as an input lowers false alarms; with the agent: house --hour

Each takes seconds to minutes. `python -m measurements.record NAME …` keeps what they print under results/.
"""
