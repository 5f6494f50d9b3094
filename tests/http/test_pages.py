"""The pages, asked for as a browser without scripts asks."""

import asyncio
import gzip
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import pytest
from fastapi import FastAPI
from house import House
from httpx import AsyncClient, Response
from hypothesis import given
from hypothesis import strategies as st

from conftest_http import Rooms, visiting  # type: ignore[import-not-found]
