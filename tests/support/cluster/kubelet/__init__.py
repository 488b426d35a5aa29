"""A node whose containers are processes of this machine: ``python -m tests.support.cluster.kubelet SETTINGS``.

It does what a kubelet does, as far as it can be done without containers: it registers its node and renews its lease;
resolves environments, writes volumes, projects service-account tokens; runs init containers in order, then the
containers; probes, restarts with back-off, ends pods with their hooks and grace; reports status; and takes the loss of
the API server as it comes.

What a process does not have, and what it gets instead:

- *Image*: `images.py` maps image names to entrypoints, set by the tests. An image that is not mapped has no entrypoint:
  then the container needs a ``command``, else it waits in ErrImagePull.
- *Mounts*: a volume is a folder below the pod's folder. Where a mount's path stands in ``command``, ``args``, the
  values of ``env`` or the command of a probe or hook, that folder's path is put (`rewriting.py`). A mount at ``/tmp``
  sets ``TMPDIR`` instead. Paths in the contents of files stay as they are. Files are written once, when the pod starts.
- *Last words*: ``terminationMessagePath`` is rewritten like a mount, so that its file comes to the status.
- *API access*: a container with a mounted service-account token has ``KUBECONFIG`` set to a file that uses this token;
  ``KUBERNETES_SERVICE_HOST`` and ``_PORT`` are those of the API server, as in any pod.
- *Network*: each pod has an address of its own out of 127.0.0.0/8, so that pods may listen on the same port.
  ``0.0.0.0`` and ``[::]`` in the places named above become that address. A process that listens on all addresses by
  itself takes the port from all pods. ``HOSTNAME`` is the pod's name; ``JOEX_TEST_POD_IP`` its address, for tests.
  Services have such addresses too, served by `service_proxy.py`; there is no DNS: where ``NAME.NAMESPACE.svc`` stands
  in the places named above, the service's address is put, and the container waits until there is such a service. What
  a process reads elsewhere stays a name: `joex_program.py` bridges that for ``joex``, which reads URLs in secrets.
- *Files*: the working directory is ``workingDir`` or that of the image, else the pod's folder, which is ``HOME`` too.

Left out: resources and security contexts (the admission checks the latter), sidecar containers (init containers with a
restartPolicy), ephemeral containers, resourceFieldRef, gRPC probes, postStart hooks, claims for persistent volumes,
images changed in place, and the kubelet's own HTTP interface (logs, exec).

Where it differs on purpose: back-off is short, and until a probe succeeds for the first time it is tried often.
"""
