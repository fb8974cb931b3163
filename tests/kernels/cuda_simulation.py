"""``python -m tests.kernels.cuda_simulation NAME...``: run cases of the CUDA kernels in numba's simulator.

The simulator is chosen by the environment (NUMBA_ENABLE_CUDASIM=1) before numba is imported, hence a
process of its own. Prints one JSON object: case to what went wrong, "" for nothing.
"""

import json
import sys
import traceback

from tests.kernels.cuda_flag_cases import FLAG_CASES
from tests.kernels.cuda_machines import SimulatedMachine
from tests.kernels.cuda_row_cases import ROW_CASES
from tests.support import cuda_stand_in


def main():
    cuda_stand_in.install()
    cases = {name: (lambda m, r=run, c=case: r(m, c)) for name, (run, case) in ROW_CASES.items()}
    outcome = {}
    cases |= FLAG_CASES
    for name in sys.argv[1:]:
        try:
            cases[name](SimulatedMachine())
            outcome[name] = ""
        except Exception:  # the parent judges
            outcome[name] = traceback.format_exc()
    json.dump(outcome, sys.stdout)


if __name__ == "__main__":
    main()
