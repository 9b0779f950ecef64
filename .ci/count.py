#!/usr/bin/env python3
"""count.py DIR [RUN...]: adds up what ran. Reads DIR/RUN.xml (JUnit, of ctest) and DIR/RUN.extra (lines
"PASSED FAILED SKIPPED NAME") of each RUN, of all without any; prints the names of what failed or was
skipped, and last the line "N passed, N failed, N skipped". Exit 0: something passed, nothing failed.
"""
import glob
import os
import re
import sys
import xml.etree.ElementTree as ET


def reason(case):
    """The line in which a skipped test says why."""
    text = "".join(case.itertext())
    found = re.findall(r"^\s*skip(?:ped)?\b:? *(.*)$", text, re.M | re.I)
    return found[-1].strip() if found else "it did not say why"


def skipped(case):
    """It said so itself. What could not be started at all has failed."""
    mark = case.find("skipped")
    return mark is not None and mark.get("message", "").startswith("SKIP_")


def reports(folder, runs, ending):
    paths = [os.path.join(folder, run + ending) for run in runs] or \
        sorted(glob.glob(os.path.join(folder, "*" + ending)))
    return [p for p in paths if os.path.exists(p)]


def main(folder, runs):
    total = [0, 0, 0]
    for path in reports(folder, runs, ".xml"):
        run = os.path.basename(path)[:-4]
        for case in ET.parse(path).getroot().iter("testcase"):
            name = case.get("name")
            if case.get("status") == "run":
                total[0] += 1
            elif skipped(case):
                total[2] += 1
                print(f"skipped: {run}: {name}: {reason(case)}")
            else:
                total[1] += 1
                print(f"failed: {run}: {name}")
    for path in reports(folder, runs, ".extra"):
        with open(path, encoding="utf-8") as f:
            for line in f:
                *counts, name = line.rstrip("\n").split(" ", 3)
                total = [t + int(c) for t, c in zip(total, counts)]
                if int(counts[1]):
                    print(f"failed: {name}")
                if int(counts[2]):
                    print(f"skipped: {name}")
    print("%d passed, %d failed, %d skipped" % tuple(total))
    return 0 if total[0] and not total[1] else 1


sys.exit(main(sys.argv[1], sys.argv[2:]))
