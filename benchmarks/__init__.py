"""Benchmarks: each module prints ratios that were measured in one run, against the bare operation or the alternative.

python -m benchmarks.statistics      the statistics of one server, against snapshot matrices
python -m benchmarks.client_round    five local steps, against the same steps on snapshot matrices
python -m benchmarks.federation      a whole federation, against the bare matrix products it needs
python -m benchmarks.scoring         batch scoring, against its bare matrix products
python -m benchmarks.stream          one streamed step, against one matrix-vector product
python -m benchmarks.optimisation    the objective after five rounds, against a centralised solver
python -m benchmarks.paper_curves    the paper's convergence curves, against every reading of what it leaves open
python -m benchmarks.importing       seconds and modules of the import of the public names
python -m benchmarks.scores          the constants of the score, on the data they were chosen on
python -m benchmarks.admission       a new device with few samples: admitted, alone, and with all its data
python -m benchmarks.encodings       bytes against the objective, for every encoding
python -m benchmarks.scale           the server's seconds and memory with 100, 1,000 and 10,000 clients
python -m benchmarks.robust          what the geometric median costs and saves under attack
python -m benchmarks.privacy         what masks and noise cost
python -m benchmarks.fleet           eight processes over TLS, two kills, a latecomer, against one process
python -m benchmarks.overhead        a round over Flower, against an empty Flower app
python -m benchmarks.edge            the agent on a device, against its budgets of memory, processor time and start

Each takes seconds to minutes. `python -m benchmarks.record NAME …` keeps what they print under results/.
"""
