"""Candidates: labels of documents and of users, and their prior."""

from __future__ import annotations

import numpy as np
import pytest

from bsmeta.config.data import DataConfig
from bsmeta.config.metadata import MetadataConfig
from bsmeta.core.errors import ConfigurationError
from bsmeta.tasks.causal_lm.evaluation.documents import HeldOutDocuments
from bsmeta.tasks.causal_lm.generation.candidates import Candidates, Labels, find_candidates


def test_the_empirical_prior_excludes_the_document() -> None:
    candidates = Candidates(["a", "b"], np.array([3, 1]), np.array([0, 0, 0, 1, -1]))
    np.testing.assert_allclose(
        np.exp(candidates.compute_log_prior("empirical", None)), [4 / 6, 2 / 6]
    )
    np.testing.assert_allclose(np.exp(candidates.compute_log_prior("empirical", 0)), [3 / 5, 2 / 5])
    np.testing.assert_allclose(np.exp(candidates.compute_log_prior("empirical", 3)), [4 / 5, 1 / 5])
    np.testing.assert_allclose(np.exp(candidates.compute_log_prior("empirical", 4)), [4 / 6, 2 / 6])
    np.testing.assert_allclose(np.exp(candidates.compute_log_prior("uniform", 0)), [0.5, 0.5])


@pytest.mark.parametrize(
    ("key", "settings", "given", "label", "value"),
    [
        ("url", {}, "https://Docs.Python.org/3/", "docs.python.org", "https://docs.python.org/"),
        ("url", {}, "python.org", "python.org", "https://python.org/"),
        (
            "url",
            {"url_granularity": "registered_domain"},
            "https://docs.python.org/3/",
            "python.org",
            "https://python.org/",
        ),
        ("timestamp", {}, "2018-12-10", "2018", "2018"),
        ("title", {}, "Sets", "Sets", "Sets"),
    ],
)
def test_candidates_are_given_as_labels_or_values(
    key: str, settings: dict[str, str], given: str, label: str, value: str
) -> None:
    labels = Labels(key, MetadataConfig(metadata_list=[key], **settings))
    assert labels.label_candidate(given) == label
    assert labels.make_record(label).value == value


def test_values_that_cannot_be_candidates_are_refused(sites: DataConfig) -> None:
    documents = HeldOutDocuments(sites, max_documents=1, deduplicate=True, training_overlap=None)
    with pytest.raises(ConfigurationError, match="expected at least two values of url"):
        find_candidates(Labels("url", sites.metadata_config), [], documents)
    with pytest.raises(ConfigurationError, match="soon is not a valid timestamp"):
        Labels("timestamp", MetadataConfig(metadata_list=["timestamp"])).label_candidate("soon")
