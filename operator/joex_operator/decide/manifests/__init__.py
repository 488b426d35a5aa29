"""The manifests of what the operator creates. The same pool gives the same manifest, to the byte."""

from joex_operator.decide.manifests.deployment import replica_deployment, template_hash

__all__ = ["replica_deployment", "template_hash"]
