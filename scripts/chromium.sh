#!/bin/sh
# The browser tests drive Debian's Chromium, without its windows where that is a package of its own. Install it where that is possible without asking anybody.
set -eu
for name in chromium-headless-shell chromium chromium-browser google-chrome; do
    if command -v "$name" >/dev/null 2>&1; then exit 0; fi
done
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "Installing Chromium for the browser tests …"
    apt-get update -qq
    fetch() { DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$1" >/dev/null; }
    fetch chromium-headless-shell 2>/dev/null || fetch chromium
else
    echo "There is no Chromium here: the browser tests will be skipped. Install it with: apt-get install chromium"
fi
