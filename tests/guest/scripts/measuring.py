"""What a script measures: a table for people in the end, and all of it as lines of JSON on the way if JSON is set, of which `barge bench` reads the last: what was
measured until then is there, whatever happens to the guest."""

import json
import os
import statistics

ROUNDS = int(os.environ["ROUNDS"])


class Measured:
    """Results, column by column. The first column is ours, `peers` are the numbers of those that it stands beside, `limit` that of what is as fast as it gets."""

    def __init__(self, title, notes, columns, peers, limit=None):
        self.told = {"title": title, "notes": notes, "columns": columns, "peers": peers, "limit": limit, "rows": [], "failed": []}

    def turns(self, warm=1):
        """The rounds, of which `warm` do not count: whether it does, and the columns. The first of one round is the last of the next."""
        for turn in range(warm + ROUNDS):
            for column in self.told["columns"][:: -1 if turn % 2 else 1]:
                yield turn >= warm, column

    def by_turns(self, what, measure, warm=1):
        """What `measure` gives of each column in each round that counts; nothing of a column where it has failed."""
        results = {column: [] for column in self.told["columns"]}
        for counts, column in self.turns(warm):
            if column not in results:
                continue
            try:
                result = measure(column)
            except (OSError, RuntimeError, ValueError, LookupError) as error:
                self.fail(column, what, error)
                del results[column]
            else:
                results[column] += [result] if counts else []
        return [results.get(column, []) for column in self.told["columns"]]

    def fail(self, column, what, why):
        """Says that a cell cannot be measured."""
        line = f"{column}, {what}: {' '.join(str(why).split())[:300]}"
        print(f"failed: {line}", flush=True)
        self.told["failed"].append(line)

    def row(self, name, unit, runs):
        """Adds a row, or more runs to it: for each column all of them."""
        rows = self.told["rows"]
        rows[:] = [row for row in rows if row["name"] != name] + [{"name": name, "unit": unit, "runs": runs}]

    def tell(self):
        if os.environ.get("JSON"):
            print(json.dumps(self.told), flush=True)

    def end(self):
        told = self.told
        print(f"{told['title']}; {'; '.join(told['notes'])}: median (least to most)\n")
        print("| | " + " | ".join(told["columns"]) + " |\n|---|" + "---|" * len(told["columns"]))
        for row in told["rows"]:
            cells = [f"{statistics.median(runs):.1f} ({min(runs):.1f} to {max(runs):.1f})" if runs else "" for runs in row["runs"]]
            print(f"| {row['name']}, {row['unit']} | " + " | ".join(cells) + " |")
        self.tell()
