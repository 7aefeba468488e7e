# Counts what a script of this directory expects; for sh.
passed=0 failed=0

# expect WHAT COMMAND...: passes if the command does.
expect() {
    expected=$1
    shift
    if "$@"; then passed=$((passed + 1)); else
        failed=$((failed + 1))
        echo "FAILED: $expected"
    fi
}

# Ends the script with the counts.
finish() {
    printf '%d passed, %d failed\n' $passed $failed
    [ $failed -eq 0 ]
    exit
}
