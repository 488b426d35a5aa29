"""A real node for the tier ``node``: kubelet, containerd, runc, kube-proxy, and the image of the Dockerfile.

::

    __main__.py    `make test-node` runs this: prepare, then run the stories inside their own machine
       |
       +-- packages.py   Debian's packages of containerd, runc and a Docker engine, unpacked into the user's cache
       +-- programs.py   kubelet, kube-proxy and kubectl, built as the control plane is
       +-- images.py     a Docker engine builds the images: the project's own by its Dockerfile, and substitutes for the
       |                 official images of Python and PostgreSQL
       +-- machine.py    namespaces of the kernel, in which the stories run
    node.py        the cluster of one node, inside of these namespaces; dns.py answers for its Services

Nothing is installed, and nothing listens on the machine's own network: control plane, node and stories run in their
own network, mount and PID namespaces, which the kernel removes when the stories end, in any way.
"""

MACHINE = "JOEX_TEST_NODE"
"""Set in the environment of the processes inside the machine."""
