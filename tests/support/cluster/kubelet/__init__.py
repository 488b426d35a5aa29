"""A node whose containers are processes of this machine: ``python -m tests.support.cluster.kubelet SETTINGS``.

It does the work of a kubelet, as far as that is possible without containers: it registers its node and renews its
lease; resolves environments, writes volumes, projects service-account tokens; runs init containers in order, then the
containers; probes, restarts with back-off, ends pods with their hooks and grace; reports status; and survives the loss
of the API server.

The differences between a process and a container:

- *Image*: `images.py` maps image names to entrypoints, set by the tests. An unknown image has no entrypoint: then
  the container needs a ``command``, otherwise it waits in ErrImagePull.
- *Mounts*: a volume is a folder below the pod's folder. In ``command``, ``args``, the values of ``env`` and the
  commands of probes and hooks, the path of that folder replaces the path of a mount (`rewriting.py`). A mount at
  ``/tmp`` sets ``TMPDIR`` instead. Paths in the contents of files stay as they are. Files are written once, when the
  pod starts.
- *Termination message*: ``terminationMessagePath`` is rewritten like a mount, so that the status shows its file.
- *API access*: a container with a mounted service-account token has ``KUBECONFIG`` set to a file that uses this token;
  ``KUBERNETES_SERVICE_HOST`` and ``_PORT`` are those of the API server, as in any pod.
- *Network*: each pod has its own address in 127.0.0.0/8, so that pods may listen on the same port.
  ``0.0.0.0`` and ``[::]`` in the places named above become that address. A process that itself listens on all addresses
  takes the port from all pods. ``HOSTNAME`` is the pod's name; ``JOEX_TEST_POD_IP`` its address, for tests.
  Services have such addresses too, served by `service_proxy.py`; there is no DNS: in the
  places named above, the address of a service replaces ``NAME.NAMESPACE.svc``, and the container waits until there is
  such a service. Elsewhere the name stays: `joex_program.py` bridges that for ``joex``, which reads URLs in secrets.
- *Files*: the working directory is ``workingDir``, or that of the image, or the pod's folder, which is ``HOME`` too.

Left out: resources and security contexts (the admission checks the latter), sidecar containers (init containers with a
restartPolicy), ephemeral containers, resourceFieldRef, gRPC probes, postStart hooks, claims for persistent volumes,
images changed in place, and the kubelet's own HTTP interface (logs, exec).

Differences on purpose: back-off is short, and probes are frequent until their first success.
"""
