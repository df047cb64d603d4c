"""Write what pip would install, with hashes, as a file of requirements: pip install --dry-run --report - … | python .ci/lock.py"""

from __future__ import annotations

import json
import platform
import sys
from typing import Any

HEAD = """\
# Everything that make demo installs beside abslrp itself; written by make lock.
# The versions hold on Python {python}; the hashes are those of CPython {python} on {system}. There this installs nothing else:
#   pip install --require-hashes -r requirements-demo.lock
"""


def line(item: dict[str, Any]) -> str:
    """One requirement. What a version has after a plus tells the build, which is left to the place it comes from."""
    about = item["metadata"]
    version = about["version"].partition("+")[0]
    return f"{about['name'].lower().replace('_', '-')}=={version} --hash=sha256:{item['download_info']['archive_info']['hashes']['sha256']}"


def main() -> None:
    found = [one for one in json.load(sys.stdin)["install"] if "archive_info" in one["download_info"]]
    python = ".".join(platform.python_version_tuple()[:2])
    print(HEAD.format(python=python, system=f"{platform.system()} {platform.machine()}"), end="")
    print("\n".join(sorted(map(line, found))))


if __name__ == "__main__":
    main()
