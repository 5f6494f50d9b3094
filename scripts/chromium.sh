#!/bin/sh
# The browser tests drive Debian's Chromium. Install it where that is possible without asking anybody.
set -eu
for name in chromium chromium-browser google-chrome; do
    if command -v "$name" >/dev/null 2>&1; then exit 0; fi
done
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "Installing Chromium for the browser tests …"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null
else
    echo "There is no Chromium here: the browser tests will be skipped. Install it with: apt-get install chromium"
fi
