"""Fails where a crate of others has a licence that is not among those accepted here, or stands in two versions without a reason.

    cargo metadata --locked --filter-platform x86_64-unknown-linux-gnu --format-version 1 | licences.py
"""

import collections
import json
import sys

ACCEPTED = {
    "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC0-1.0", "ISC", "MIT", "MPL-2.0",
    "Unicode-3.0", "Unlicense", "Zlib",
}
# Each is asked for by crates that have not moved to the newer one; none of them by this workspace itself.
TWICE = {
    "cpufeatures": "sha2 0.10, and proptest",
    "getrandom": "rand 0.9, and tempfile",
    "hashbrown": "safetensors, and indexmap",
    "rand": "this workspace, and proptest",
    "rand_core": "as rand",
    "syn": "derive macros of serde, and the others",
}


def accepted(expression):
    """Whether one of the alternatives needs nothing but accepted licences."""
    if expression is None:
        return False
    alternatives = expression.replace("/", " OR ").replace("(", "").replace(")", "").split(" OR ")
    if " AND " in expression and " OR " in expression:
        # An alternative of one part, such as (A OR B) AND C: all of its parts must be accepted.
        alternatives = [expression.replace("(", "").replace(")", "").replace(" OR ", " AND ")]
    return any(all(part.strip() in ACCEPTED for part in one.split(" AND ")) for one in alternatives)


packages = json.load(sys.stdin)["packages"]
versions = collections.defaultdict(set)
wrong = []
for package in packages:
    versions[package["name"]].add(package["version"])
    if not accepted(package["license"]):
        wrong.append(f"{package['name']} {package['version']}: licence {package['license']}")
for name, found in sorted(versions.items()):
    if len(found) > 1 and name not in TWICE:
        wrong.append(f"{name} stands in {len(found)} versions: {', '.join(sorted(found))}")
    if len(found) == 1 and name in TWICE:
        wrong.append(f"{name} stands in one version now: it needs no reason")
for name in TWICE.keys() - versions.keys():
    wrong.append(f"{name} is not there any more: it needs no reason")
print("\n".join(wrong) or f"{len(packages)} crates, all with an accepted licence")
sys.exit(bool(wrong))
