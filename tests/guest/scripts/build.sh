#!/bin/sh
# Builds a small C project twice: all of it, then nothing, then what a touched header asks for. FILES: as many.
set -eu
files=${FILES:-30}
mkdir src
cd src
echo 'int sum(void);' >all.h
{
    echo '#include <stdio.h>'
    echo '#include "all.h"'
    echo 'int main(void) { printf("%d", sum()); return 0; }'
} >main.c
{
    i=0
    while [ $i -lt "$files" ]; do
        printf '#include <string.h>\n#include "all.h"\nint f%d(int x) { char b[64]; memset(b, x, sizeof b); return b[x %% 64] - x + %d; }\n' $i $i >f$i.c
        echo "int f$i(int);"
        i=$((i + 1))
    done
    echo '#include "all.h"'
    echo 'int sum(void) { int s = 0;'
    i=0
    while [ $i -lt "$files" ]; do
        echo "s += f$i($i);"
        i=$((i + 1))
    done
    echo 'return s; }'
} >sum.c
cat >Makefile <<'END'
objects := $(patsubst %.c,%.o,$(wildcard *.c))
prog: $(objects)
	$(CC) -o $@ $^
$(objects): all.h
lib: liball.a
liball.a: $(objects)
	$(AR) rcs $@ $^
END
make -s -j2 prog lib CFLAGS=-O1
[ "$(./prog)" -eq $((files * (files - 1) / 2)) ] || { echo "build: the program says $(./prog)"; exit 1; }
make -q prog || { echo "build: make finds something to do after all is built"; exit 1; }
touch f0.c
make -n prog | grep -q 'f0\.c' || { echo "build: make misses a touched file"; exit 1; }
[ "$(make -n prog | grep -c '\.c$')" -le 1 ] || { echo "build: make rebuilds more than what was touched"; exit 1; }
echo "build: $files files compiled, linked and run"
