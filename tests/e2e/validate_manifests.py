#!/usr/bin/env python3
"""Validates scripts/launch_k8s.yaml and scripts/recipes/*.yaml, by the Python packages PyYAML and kubernetes-validate: kinds of
Kubernetes, and the Job in each JobSet and runtime of Kubeflow Trainer. With a folder of CustomResourceDefinitions (of the
projects JobSet and Kubeflow Trainer, as YAML) in FSDP_TEST_CRDS, also these two kinds of objects, by jsonschema."""
import os
import sys
from pathlib import Path

import kubernetes_validate
import yaml

PROJECT = Path(__file__).resolve().parents[2]
CORE = {"v1", "batch/v1"}


def definitions():
    found = {}
    folder = os.environ.get("FSDP_TEST_CRDS")
    for file in sorted(Path(folder).glob("*.yaml")) if folder else []:
        for document in yaml.safe_load_all(file.read_text()):
            spec = document["spec"]
            for version in spec["versions"]:
                found[f"{spec['group']}/{version['name']}", spec["names"]["kind"]] = version["schema"]["openAPIV3Schema"]
    return found


def strict(schema):
    """The schema in JSON Schema's terms, in which an object has no other fields than those listed, as kubectl has it."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    result = {name: strict(value) for name, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and not schema.get("x-kubernetes-preserve-unknown-fields"):
        result.setdefault("additionalProperties", False)
    if schema.get("x-kubernetes-int-or-string"):
        result["type"] = ["integer", "string"]
    return result


def check(document, crds):
    key = document["apiVersion"], document["kind"]
    if key[0] in CORE:
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
        return
    spec = document["spec"]
    for job in spec.get("template", {}).get("spec", spec).get("replicatedJobs", []):
        name = {"metadata": {"name": job["name"]}}
        check({"apiVersion": "batch/v1", "kind": "Job", **name, "spec": job["template"]["spec"]}, crds)
    if key in crds:
        import jsonschema
        schema = strict(crds[key])
        schema["properties"]["metadata"] = {"type": "object", "required": ["name"]}
        jsonschema.Draft7Validator(schema).validate(document)


def main():
    crds = definitions()
    for file in [PROJECT / "scripts/launch_k8s.yaml", *sorted(PROJECT.glob("scripts/recipes/*.yaml"))]:
        for document in yaml.safe_load_all(file.read_text()):
            check(document, crds)
            document["spec"]["templte"] = {}  # a mistake must be found
            key = document["apiVersion"], document["kind"]
            if key[0] in CORE or key in crds:
                try:
                    check(document, crds)
                except Exception as error:
                    assert "templte" in str(error), error
                else:
                    sys.exit(f"{file}: a misspelt field of {document['kind']} is not found")
            print(f"{file.name}: {document['kind']} is valid")


if __name__ == "__main__":
    main()
