#!/bin/sh
# Install what the tests need from the distribution: a Chromium for the browser tests, bubblewrap for the sandbox tests.
# Only as root on a Debian; elsewhere say what will be skipped.
set -eu

has() { command -v "$1" >/dev/null 2>&1; }
has_chromium() { has chromium-headless-shell || has chromium || has chromium-browser || has google-chrome; }
fetch() { DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$1" >/dev/null; }

if has_chromium && has bwrap; then exit 0; fi
if [ "$(id -u)" = 0 ] && has apt-get; then
    echo "Installing Chromium and bubblewrap for the tests …"
    apt-get update -qq
    # Without windows, where that is a package of its own: its tests take a fifth less time.
    has_chromium || fetch chromium-headless-shell 2>/dev/null || fetch chromium
    has bwrap || fetch bubblewrap
else
    has_chromium || echo "No Chromium here: the browser tests will be skipped. Install it with: apt-get install chromium"
    has bwrap || [ "$(uname)" != Linux ] || echo "No bubblewrap here: the sandbox tests use the one of the Python package."
fi
