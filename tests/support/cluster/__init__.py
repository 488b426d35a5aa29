"""A Kubernetes cluster for the tests of the tier ``cluster``.

::

    tests/cluster/conftest.py   the fixtures: cluster, api, namespace, helm, own_node; option.py: the option --cluster
       |
    providers.py  which cluster: local (below), kind (kind.py), or a context that the user named explicitly
       |
    local.py      a control plane with its nodes, in a temporary folder
       |
       +-- control_plane.py   etcd, kube-apiserver, kube-controller-manager, kube-scheduler, on loopback
       |       service_proxy.py  audit.py  pki.py  kubeconfig.py  components.py  processes.py  build.py  go/
       +-- nodes.py           the tests' side of a node: stop it, silence it, kill its containers
       |       kubelet/       the node itself, a process: runs the containers of its pods as local processes
       +-- joex_program.py, postgres_image.py   the programs of its images

    api.py        the tests' client: objects as JSON, waiting by watching; objects.py, namespaces.py: objects of tests
    system.py     Joex with operators as processes beside the cluster
    release.py    Joex as its chart installs it; chart.py, definitions.py, helm.py

All of it is real except the containers: a pod's process sees the machine's files and network. The differences, and how
the process kubelet bridges them, are in `tests.support.cluster.kubelet`.
"""
