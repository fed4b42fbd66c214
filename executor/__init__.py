"""The real world: processes, partitioned models, messages; needs the extra ``executor``.

A *coordinator* (``run/controller.py``) serves a deployment's requests by *workers*
(``run/worker.py``), a process for each draft server and stage. Each worker has a *line*
(``run/lines.py``), on which it answers the coordinator's *records* (``wire/records.py``); workers
send each other messages (``wire/mailbox.py``). On another *host* a daemon (``hosts/daemon.py``)
starts the same processes.

Four floors; each imports those before it alone:

* ``models/``: families, layers, heads, caches, drafts;
* ``wire/``: transport, records, messages, keys, clocks;
* ``hosts/``: the processes of this host and of others;
* ``run/``: coordinator, crew, recovery, and the workers' bodies.

``measure/`` stands beside them: it times devices, links and acceptance for profiles.
"""
