"""The example for Kubernetes has the fields that KubeRay knows, and agrees with the package."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from cpr_native.ray import ClusterSettings, HealthProfile

pytestmark = pytest.mark.filterwarnings("ignore")

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDER = ROOT / "examples" / "kubernetes"
TEXT = (FOLDER / "raycluster.yaml").read_text(encoding="utf-8")
SCHEMA = json.loads((Path(__file__).parent / "raycluster.schema.json").read_text(encoding="utf-8"))


@pytest.fixture
def cluster() -> dict[str, Any]:
    (found,) = (d for d in yaml.safe_load_all(TEXT) if d["kind"] == "RayCluster")
    return copy.deepcopy(dict(found))


def test_it_has_the_schema(cluster: dict[str, Any]) -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate(cluster, SCHEMA)


@pytest.mark.parametrize(
    "damage",
    [
        lambda c: c["spec"].pop("headGroupSpec"),
        lambda c: c["spec"].update(workers=3),
        lambda c: c["spec"]["authOptions"].update(mode="none"),
        lambda c: c["spec"]["workerGroupSpecs"][0].update(replicas="5"),
        lambda c: c["spec"]["workerGroupSpecs"][0]["rayStartParams"].update({"num-cpus": 4}),
        lambda c: c["spec"]["headGroupSpec"]["template"]["spec"].pop("containers"),
    ],
)
def test_the_schema_finds_mistakes(cluster: dict[str, Any], damage: Any) -> None:
    damage(cluster)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(cluster, SCHEMA)


def test_it_says_that_it_was_not_run() -> None:
    assert TEXT.startswith("# NOT RUN ON KUBERNETES")
    assert "Not run on Kubernetes" in (FOLDER / "Containerfile").read_text(encoding="utf-8")


def test_it_agrees_with_the_package(cluster: dict[str, Any]) -> None:
    spec = cluster["spec"]
    (workers,) = spec["workerGroupSpecs"]
    assert spec["authOptions"] == {"mode": "token"}
    assert f"ray=={spec['rayVersion']}\n" in (ROOT / "constraints.txt").read_text(encoding="utf-8")
    settings = ClusterSettings(run="any")
    quoted = workers["rayStartParams"]["resources"]  # for a shell, as KubeRay wants it
    assert json.loads(json.loads(quoted)) == {settings.resource: 1}
    assert workers["template"]["spec"]["terminationGracePeriodSeconds"] > settings.grace
    for group in (spec["headGroupSpec"], workers):
        (container,) = group["template"]["spec"]["containers"]
        environment = {each["name"]: each["value"] for each in container["env"]}
        assert HealthProfile().environment().items() <= environment.items()
        names = {volume["name"] for volume in group["template"]["spec"]["volumes"]}
        assert {mount["name"] for mount in container["volumeMounts"]} == names
