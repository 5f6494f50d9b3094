"""Rota's own benchmark: figures are ratios within one run, and go to bench/results/ as JSON too."""
