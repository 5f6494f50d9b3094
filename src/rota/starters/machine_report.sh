# Disk and memory of the machine the worker runs on, in plain POSIX shell.
echo "Machine: $(uname -n), $(uname -s) $(uname -r), $(date -u '+%Y-%m-%d %H:%M:%S') UTC"
echo
echo "Disk"
df -hP . | awk 'NR == 2 { printf "  %s used of %s (%s), %s free\n", $3, $2, $5, $4 }'
echo
echo "Memory"
if [ -r /proc/meminfo ]; then
    awk '/^MemTotal/ { total = $2 } /^MemAvailable/ { free = $2 }
         END { printf "  %.1f GB used of %.1f GB, %.1f GB available\n", (total - free) / 1048576, total / 1048576, free / 1048576 }' /proc/meminfo
else
    echo "  $(sysctl -n hw.memsize 2>/dev/null | awk '{ printf "%.1f GB in all", $1 / 1073741824 }')"
fi
echo
free_percent=$(df -P . | awk 'NR == 2 { print 100 - $5 }')
if [ "$free_percent" -lt 10 ]; then
    echo "Only $free_percent % of the disk is free: make room soon."
else
    echo "All is well: $free_percent % of the disk is free."
fi
