"""A program with mistakes that type checkers find."""

import barge

client = barge.Client(3)  # error
number: int = client.open("file").read()  # error
client.open("file", "rz")  # error
client.open("file", "rb").write("text")  # error
client.stat(b"name")  # error
client.utime("file", ns=5)  # error
raw: barge.File = client.open("file", "rb")  # error
client.stat("file").st_birthtime + 1  # error
client.stat("file").st_size = 5  # error
