"""Programs with a known cause of nondeterminism, and programs that only look as if they had one.

They are the files in `programs/causes`. These do not mention their causes; the expected findings are listed here.
"""

from __future__ import annotations

from tests.e2e.expected_causes import Cause, CauseProgram

SEEDING = (
    CauseProgram(
        "seeding/missing_torch",
        (Cause("seed-missing-torch", "return nn.Sequential(nn.Linear(2, width)", or_code=("build_model(options",)),),
        "rng",
    ),
    CauseProgram("seeding/missing_numpy", (Cause("seed-missing-numpy", "np.random.normal(0.0, 0.2"),), "data"),
    CauseProgram("seeding/missing_python", (Cause("seed-missing-python", "random.random() < self.drop"),), "structure"),
    CauseProgram(
        "seeding/late_seed",
        (
            Cause(
                "seed-too-late",
                "torch.manual_seed(arguments.seed)",
                or_code=("self.head = nn.Linear", "self.backbone = nn.Sequential"),
            ),
        ),
        "rng",
    ),
    CauseProgram("seeding/time_seed", (Cause("seed-varies", "return int(given) if given else int(time"),), "rng"),
    CauseProgram("seeding/pid_seed", (Cause("seed-varies", "np.random.seed(seed + os.getpid())"),), "data"),
    CauseProgram("seeding/entropy_seed", (Cause("seed-varies", "seed = int.from_bytes(os.urandom"),), "rng"),
    CauseProgram(
        "seeding/hash_seed",
        (
            Cause(
                "seed-varies",
                "torch.manual_seed(seed_of(experiment))",
                or_code=("return hash(experiment)",),
                or_identifiers=("hash-value",),
            ),
        ),
        "rng",
    ),
    CauseProgram("seeding/fresh_generator", (Cause("generator-unseeded", "np.random.default_rng()"),), "data"),
    CauseProgram(
        "seeding/library_generator",
        (Cause("generator-unseeded", "random.Random(seed)", file="seeding/augmenting/compose.py"),),
    ),
    CauseProgram(
        "seeding/late_split",
        (Cause("seed-too-late", "torch.manual_seed(seed)", or_code=("random_split(dataset",)),),
        "rng",
    ),
    CauseProgram("seeding/worker_seed", (Cause("seed-varies", "np.random.seed((os.getpid()"),)),
    CauseProgram("seeding/worker_generator", (Cause("generator-unseeded", "np.random.default_rng()"),), "data"),
    CauseProgram(
        "seeding/worker_noise",
        (Cause("seed-missing-torch", "torch.randn(clean.shape)", or_code=("for noisy, clean in DataLoader",)),),
        "rng",
    ),
    CauseProgram("seeding/environment", (Cause("generator-unseeded", "np.random.default_rng(seed)"),), "data"),
    CauseProgram("seeding/reseeding_callback", (Cause("generator-unseeded", "random.seed()"),), "data"),
    CauseProgram("seeding/sampler_generator", (Cause("generator-unseeded", "sampling.seed()"),), "rng"),
    CauseProgram(
        "seeding/forked_crops",
        (Cause("seed-lost-by-fork", "torch.tensor(queue.get())", or_code=("random.randrange(4)",), is_fixed=False),),
    ),
    CauseProgram("seeding/spawned_ranks", (Cause("seed-missing-torch", "torch.randn(own.shape)"),)),
    CauseProgram(
        "seeding/system_negatives",
        (
            Cause(
                "entropy",
                "self.random.sample(",
                or_code=("random.SystemRandom()",),
                or_identifiers=("generator-unseeded",),
            ),
        ),
    ),
)

ORDERING = (
    CauseProgram("ordering/vocabulary", (Cause("hash-order", "enumerate(words)"),), "data"),
    CauseProgram("ordering/label_ids", (Cause("hash-order", 'list({row["species"] for row in rows})'),), "data"),
    CauseProgram("ordering/hash_seed_too_late", (Cause("hash-order", "enumerate(set(TEXT))"),)),
    CauseProgram("ordering/shared_columns", (Cause("hash-order", "list(old.keys() & new.keys())"),)),
    CauseProgram("ordering/task_losses", (Cause("hash-order", "for task in self.active"),)),
    CauseProgram("ordering/popped_nodes", (Cause("hash-order", "left.pop()"),)),
    CauseProgram("ordering/largest_of_regions", (Cause("hash-order", "for region in REGIONS"),)),
    CauseProgram("ordering/hash_split", (Cause("hash-value", "hash(recording.name)"),)),
    CauseProgram("ordering/tied_parameters", (Cause("address-order", "for parameter in parameters:"),)),
    CauseProgram("ordering/object_set", (Cause("address-order", "for node in self.open"),)),
    CauseProgram("ordering/attached_experts", (Cause("address-order", "for expert in self.attached"),), "order"),
    CauseProgram("ordering/identity_shards", (Cause("address-order", "id(parameter) // 4096", is_fixed=False),)),
    CauseProgram(
        "ordering/hashed_users",
        (Cause("address-order", "hash(user) % self.rows", or_identifiers=("hash-value",), is_fixed=False),),
        "data",
    ),
    CauseProgram("ordering/listed_shards", (Cause("listing-order", "os.listdir(folder)"),)),
    CauseProgram(
        "ordering/globbed_shards",
        (Cause("listing-order", "glob.glob(pattern)"),),
        options=("--vary", "listings"),
        is_plainly_same=True,
    ),
    CauseProgram(
        "ordering/class_folders",
        (Cause("listing-order", "root.iterdir()"),),
        options=("--vary", "listings"),
        is_plainly_same=True,
    ),
    CauseProgram("ordering/exported_shards", (Cause("entropy", "uuid.uuid4().hex"),)),
    CauseProgram("ordering/process_shard", (Cause("process-id", "os.getpid() % FOLDS"),)),
    CauseProgram(
        "ordering/reshuffled_lines", (Cause("program-output", '"--random-sort", path.name', is_fixed=False),), "data"
    ),
    CauseProgram("ordering/sampled_rows", (Cause("query-result", "cursor.execute(DRAW", is_fixed=False),), "data"),
)

LOADING = (
    CauseProgram(
        "loading/unordered_batches",
        (Cause("completion-order", "in_order=False", or_code=("for batch in loader",)),),
    ),
    CauseProgram("loading/pool_features", (Cause("completion-order", "pool.imap_unordered(features"),), "data"),
    CauseProgram("loading/unordered_texts", (Cause("completion-order", "pool.imap_unordered(tokenize"),)),
    CauseProgram("loading/finished_downloads", (Cause("completion-order", "for future in as_completed(futures)"),)),
    CauseProgram(
        "loading/first_finished",
        (
            Cause(
                "completion-order",
                "return_when=FIRST_COMPLETED",
                or_code=("future.result() for future in done",),
                is_fixed=False,
            ),
        ),
    ),
    CauseProgram("loading/prefetch_queue", (Cause("queue-order", "self.ready.get()", is_fixed=False),), "order"),
    CauseProgram("loading/padded_arrays", (Cause("uninitialized-memory", "np.empty((len(batch)"),)),
)

MEMORY = (
    CauseProgram(
        "memory/padded_batch", (Cause("uninitialized-memory", "torch.empty(len(samples), longest"),), "uninitialized"
    ),
    CauseProgram(
        "memory/bare_parameter", (Cause("uninitialized-memory", "nn.Parameter(torch.empty(outputs))"),), "uninitialized"
    ),
    CauseProgram(
        "memory/forgotten_reset",
        (Cause("uninitialized-memory", "torch.empty((scores, size, size))"),),
        "uninitialized",
    ),
    CauseProgram(
        "memory/attention_cache", (Cause("uninitialized-memory", "torch.empty(batch, ROOM, SIZE)"),), "uninitialized"
    ),
)

KERNELS = (
    CauseProgram("kernels/message_passing", (Cause("nondeterministic-op", "received.index_put_((targets,)"),), "op"),
    CauseProgram(
        "kernels/selected_rows",
        (Cause("nondeterministic-op", "self.depth[hits]", or_code=("loss.backward()",)),),
        "op",
    ),
    CauseProgram("kernels/soft_histogram", (Cause("nondeterministic-op", "torch.zeros(BINS).put_("),), "op"),
    CauseProgram("kernels/last_writer", (Cause("nondeterministic-op", "depth[rows * WIDTH + columns]"),), "op"),
    # While other programs compute, two runs may differ and the repeats of the op in a third run may not.
    CauseProgram(
        "kernels/copied_rows",
        (Cause("nondeterministic-op", "self.rows.index_copy_(", statuses=("confirmed", "likely")),),
        "op",
    ),
    CauseProgram(
        "kernels/taken_values",
        (Cause("nondeterministic-op", "torch.take(self.values", or_code=("loss.backward()",)),),
        "op",
    ),
    CauseProgram(
        "kernels/least_squares",
        (
            Cause(
                "memory-alignment",
                "torch.linalg.lstsq(",
                or_identifiers=("nondeterministic-op", "uninitialized-memory"),
                is_fixed=False,
            ),
        ),
        "op",
    ),
)

THREADS = (
    CauseProgram("threads/lost_updates", (Cause("thread-race", "self.sums.add_(values)", is_fixed=False),)),
    CauseProgram(
        "threads/hogwild",
        (
            Cause(
                "process-race", "optimizer.step()", or_code=("model(inputs[part])", "loss.backward()"), is_fixed=False
            ),
        ),
    ),
    CauseProgram(
        "threads/shared_generator",
        (Cause("shared-generator", "generator=self.noise", is_fixed=False),),
    ),
    CauseProgram(
        "threads/stage_queue",
        (Cause("queue-order", "cleaned = ready.get()", or_code=("windows.get()",), is_fixed=False),),
    ),
    CauseProgram("threads/summed_futures", (Cause("completion-order", "for future in as_completed(futures)"),)),
    CauseProgram(
        "threads/background_checkpoint",
        (
            Cause(
                "torn-checkpoint",
                "target=torch.save",
                or_code=("thread.start()", "saver.save(model.state_dict()"),
                is_fixed=False,
            ),
        ),
    ),
)

CLOCK = (
    CauseProgram(
        "clock/time_budget", (Cause("clock", "while (share := (time.perf_counter()", or_code=("start, steps =",)),)
    ),
    CauseProgram(
        "clock/slow_epochs", (Cause("clock", "now = time.monotonic()", or_code=("default_factory=time.mono",)),)
    ),
    CauseProgram(
        "clock/measured_batch",
        (Cause("clock", "(perf_counter() - started) / count", or_code=("started = perf_counter()",)),),
    ),
    CauseProgram("clock/daily_phase", (Cause("clock", "now = datetime.now()"),)),
    CauseProgram(
        "clock/chosen_kernel",
        (Cause("clock", "return time.perf_counter_ns() - begin", or_code=("begin = time.perf_counter_ns()",)),),
        "structure",
    ),
)

FILES = (
    CauseProgram(
        "files/last_checkpoint",
        (Cause("leftover-file", "saved = torch.load(LAST)", or_code=("if LAST.exists()",), is_fixed=False),),
    ),
    CauseProgram(
        "files/running_statistics",
        (
            Cause(
                "leftover-file",
                "with CACHE.open() as file",
                or_code=("if CACHE.is_file()", "json.load(file)"),
                is_fixed=False,
            ),
        ),
    ),
    CauseProgram("files/scratch_fold", (Cause("entropy", "tempfile.mkdtemp(prefix"),)),
    CauseProgram(
        "files/cache_key",
        (
            Cause(
                "entropy",
                "str(uuid.uuid4())",
                or_code=("torch.Generator().manual_seed(int(self.fingerprint()",),
                or_identifiers=("seed-varies",),
            ),
        ),
    ),
)

HIDDEN = (
    CauseProgram(
        "hidden/recomputed_dropout",
        (
            Cause(
                "recomputed-randomness",
                "checkpoint(block, hidden",
                or_code=("self.drop(torch.relu",),
                or_identifiers=("seed-missing-torch",),
            ),
        ),
        "rng",
    ),
    CauseProgram("hidden/noisy_gradient", (Cause("generator-unseeded", "np.random.RandomState()"),)),
    CauseProgram("hidden/gradient_hook", (Cause("seed-missing-python", "random.gauss(1.0"),)),
    CauseProgram("hidden/langevin", (Cause("generator-unseeded", "self.noise.seed()"),)),
    CauseProgram("hidden/late_mixup", (Cause("seed-missing-numpy", "np.random.beta("),)),
    CauseProgram(
        "hidden/target_network",
        (
            Cause(
                "seed-too-late",
                "torch.manual_seed(4)",
                or_code=("return nn.Sequential(nn.Linear(4, 16)", "target = network()"),
                or_identifiers=("seed-missing-torch",),
            ),
        ),
        "rng",
    ),
    CauseProgram(
        "hidden/small_last_batch",
        (Cause("seed-missing-numpy", "np.random.permutation(97)"),),
        "data",
        options=("--allow-failure",),
        exit_status=1,
    ),
    CauseProgram(
        "hidden/dithered_weights",
        (
            Cause(
                "changed-behind",
                "self.bytes[: weights.numel()]",
                ("confirmed", "likely", "possible"),
                or_code=("library.getentropy(",),
                is_fixed=False,
            ),
        ),
        "mutation",
    ),
)

SEVERAL = (
    CauseProgram(
        "several/labels_and_noise",
        (
            Cause("hash-order", "zip(languages, range(len(languages))"),
            Cause("seed-missing-numpy", "np.random.random() >= rate"),
        ),
    ),
    CauseProgram(
        "several/shuffle_and_patience",
        (
            Cause("generator-unseeded", "shuffler = random.Random()"),
            Cause("clock", "time.monotonic() - self.started", or_code=("self.started = time.monotonic()",)),
        ),
    ),
    CauseProgram(
        "several/policy_and_explorers",
        (
            Cause("seed-missing-torch", "layer = nn.Linear(4, 4, bias=False)"),
            Cause("seed-missing-python", "random.uniform(-0.1, 0.1)"),
        ),
        "rng",
    ),
)

GUILTY = (*SEEDING, *ORDERING, *LOADING, *MEMORY, *KERNELS, *THREADS, *CLOCK, *FILES, *HIDDEN, *SEVERAL)
"""Each has one cause; a few have two."""

CONTROLS = tuple(
    CauseProgram(f"controls/{name}")
    for name in (
        "everything_seeded",
        "sorted_vocabulary",
        "membership",
        "logged_time",
        "reordered_futures",
        "filled_buffers",
        "hashed_numbers",
        "locked_counts",
        "sorted_listing",
        "own_generators",
        "recomputed_seeded",
        "indexed_results",
        "discarded_draws",
        "ordered_sums",
        "resumed_checkpoint",
        "asked_elsewhere",
    )
)
"""Deterministic programs that look nondeterministic."""

ALL = {program.path: program for program in (*GUILTY, *CONTROLS)}
