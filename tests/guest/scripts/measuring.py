"""What a script measures: a table for people as it goes, and all of it as a line of JSON in the end if JSON is set, which `barge bench` reads."""

import json
import os
import statistics


class Measured:
    """Results, column by column. The first column is ours, `peers` are the numbers of those that it stands beside, `limit` that of what is as fast as it gets."""

    def __init__(self, title, notes, columns, peers, limit=None):
        self.told = {"title": title, "notes": notes, "columns": columns, "peers": peers, "limit": limit, "rows": []}
        print(f"{title}; {'; '.join(notes)}: median (least to most)\n")
        print("| | " + " | ".join(columns) + " |\n|---|" + "---|" * len(columns))

    def row(self, name, unit, runs):
        """Adds a row: for each column its runs."""
        cells = [f"{statistics.median(each):.1f} ({min(each):.1f} to {max(each):.1f})" for each in runs]
        print(f"| {name}, {unit} | " + " | ".join(cells) + " |", flush=True)
        self.told["rows"].append({"name": name, "unit": unit, "runs": runs})

    def end(self):
        if os.environ.get("JSON"):
            print(json.dumps(self.told), flush=True)
