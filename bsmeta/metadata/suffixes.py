"""The public suffix list bundled with tldextract: no network, no cache folder."""

from __future__ import annotations

import tldextract

extract = tldextract.TLDExtract(suffix_list_urls=(), cache_dir=None)
"""Splits a host into subdomain, domain and public suffix."""
