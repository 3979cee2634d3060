#!/usr/bin/env python3
"""A run as Prometheus, node_exporter, Grafana's queries, W&B and MLflow see it.

Prometheus and node_exporter are those of PATH (Debian: prometheus, prometheus-node-exporter), and the packages wandb and mlflow those
of the Python in FSDP_TEST_PYTHON. Tests of what is missing are skipped. Programs are in FSDP_BIN_DIR."""
import array
import json
import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
import unittest
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

BIN = Path(os.environ["FSDP_BIN_DIR"])
PROJECT = Path(__file__).resolve().parents[2]
DASHBOARD = json.loads((PROJECT / "scripts/recipes/grafana_dashboard.json").read_text())
NODE_EXPORTER = shutil.which("prometheus-node-exporter") or shutil.which("node_exporter")
# Of a GPU, of fp16, of an objective, of a rank that is slow.
WITHOUT_NUMBERS = re.compile("fsdp_(gpu_|loss_scale|skipped_steps|objective_metric|slow_rank_ratio)")
CONFIG = """
[run]
name = "odd \\"name\\""
[model]
vocab_size = 17
hidden_size = 32
intermediate_size = 64
num_hidden_layers = 2
num_attention_heads = 4
max_position_embeddings = 32
[data]
train = ["{folder}/tokens.bin"]
validation = ["{folder}/tokens.bin"]
sequence_length = 16
micro_batch_size = 2
[evaluation]
interval_steps = 20
max_samples = 4
accuracy = true
[checkpoint]
interval_steps = 20
keep_last = 1
[logging]
interval_steps = 1
peak_tflops = 0.1
"""


def write_config(folder):
    (folder / "tokens.bin").write_bytes(array.array("H", [3 * (i % 7) % 17 for i in range(4000)]).tobytes())
    config = folder / "config.toml"
    config.write_text(CONFIG.format(folder=folder))
    return config


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def fetch(url, accept="*/*"):
    with urllib.request.urlopen(urllib.request.Request(url, headers={"Accept": accept}), timeout=10) as response:
        return response.read().decode()


def eventually(function, seconds=60):
    """The first true result, or the last."""
    end = time.monotonic() + seconds
    while True:
        try:
            result = function()
        except (urllib.error.URLError, OSError, ValueError):
            result = None
        if result or time.monotonic() > end:
            return result
        time.sleep(0.2)


class Running:
    """Programs in the background, which end with the test."""

    def __init__(self, test):
        self.test = test

    def start(self, command, log, **environment):
        with open(log, "wb") as file:
            process = subprocess.Popen([str(word) for word in command], stdout=file, stderr=file, env={**os.environ, **environment})
        self.test.addClassCleanup(self.stop, process)
        return process

    @staticmethod
    def stop(process):
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def expressions(value):
    if isinstance(value, dict):
        if "expr" in value:
            yield value["expr"]
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from expressions(each)


class ARunningRun(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if not (shutil.which("promtool") and shutil.which("prometheus")) and not NODE_EXPORTER:
            raise unittest.SkipTest("neither Prometheus nor node_exporter is installed")
        cls.folder = Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        (cls.folder / "node").mkdir()
        cls.running = Running(cls)
        for first in range(20000, 30000, 7):  # ranks have consecutive ports
            try:
                for port in (first, first + 1):
                    socket.create_server(("127.0.0.1", port)).close()
                break
            except OSError:
                continue
        cls.ports = [first, first + 1]
        cls.run_log = cls.folder / "run.log"
        cls.running.start([BIN / "fsdp-launch", "--nproc-per-node", "2", "--", BIN / "fsdp-train", write_config(cls.folder),
                           f"run.output_dir={cls.folder}/run", "training.steps=1_000_000", f"logging.metrics_port={first}",
                           "logging.metrics_ranks=all", f"logging.metrics_textfile={cls.folder}/node/run.prom"],
                          cls.run_log, OMP_NUM_THREADS="1")
        page = eventually(lambda: (text := fetch(f"http://127.0.0.1:{first}/metrics")) and "fsdp_validation_loss" in text and
                          "fsdp_checkpoint_timestamp_seconds" in text and text)
        if not page:
            raise AssertionError(f"the run serves no metrics:\n{cls.run_log.read_text()}")

    @unittest.skipUnless(shutil.which("promtool"), "promtool is not installed")
    def test_promtool_has_nothing_to_say_of_the_text(self):
        for text in (fetch(f"http://127.0.0.1:{self.ports[0]}/metrics"), fetch(f"http://127.0.0.1:{self.ports[1]}/metrics"),
                     (self.folder / "node/run.prom").read_text()):
            self.assertIn("\nfsdp_step{", text)
            checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True)
            self.assertEqual((checked.returncode, checked.stdout + checked.stderr), (0, ""))
        bad = subprocess.run(["promtool", "check", "metrics"], input="fsdp_tokens_millis 1\n", capture_output=True, text=True)
        self.assertNotEqual(bad.returncode, 0)

    @unittest.skipUnless(shutil.which("prometheus"), "Prometheus is not installed")
    def test_prometheus_reads_all_ranks_and_answers_the_queries_of_the_dashboard(self):
        (port,) = free_ports(1)
        config = self.folder / "prometheus.yml"
        config.write_text("global: {scrape_interval: 1s, scrape_timeout: 1s}\nscrape_configs:\n- job_name: fsdp\n  static_configs:\n"
                          f"  - targets: [{', '.join(repr(f'127.0.0.1:{each}') for each in self.ports)}]\n")
        log = self.folder / "prometheus.log"
        self.running.start(["prometheus", f"--config.file={config}", f"--storage.tsdb.path={self.folder}/tsdb",
                            f"--web.listen-address=127.0.0.1:{port}", "--enable-feature=extra-scrape-metrics"], log)
        api = f"http://127.0.0.1:{port}/api/v1"

        def query(expression):
            answer = json.loads(fetch(f"{api}/query?{urllib.parse.urlencode({'query': expression})}"))
            self.assertEqual(answer["status"], "success", expression)
            return answer["data"]["result"]

        self.assertTrue(eventually(lambda: len(query("count_over_time(up[1m]) >= 10")) == 2), log.read_text())
        targets = json.loads(fetch(f"{api}/targets"))["data"]["activeTargets"]
        self.assertEqual([(each["health"], each["lastError"]) for each in targets], [("up", "")] * 2)
        self.assertEqual(query("min_over_time(up[1m]) == 0"), [])
        # Units are those of OpenMetrics, which Prometheus has asked for.
        metadata = json.loads(fetch(f"{api}/metadata?metric=fsdp_step_duration_seconds"))["data"]
        self.assertEqual([(each["type"], each["unit"]) for each in metadata["fsdp_step_duration_seconds"]], [("summary", "seconds")])
        queries = list(expressions(DASHBOARD))
        self.assertGreater(len(queries), 35)
        for expression in queries:
            text = expression.replace("$run", ".*").replace("$__rate_interval", "30s")
            result = query(text)
            self.assertEqual(bool(result), not WITHOUT_NUMBERS.search(text), text)
        self.assertEqual({each["metric"]["rank"] for each in query("fsdp_step")}, {"0", "1"})
        labels = json.loads(fetch(f"{api}/label/run/values"))["data"]
        self.assertEqual(labels, ['odd "name"'])
        self.assertNotIn("level=warn", log.read_text())
        self.assertNotIn("level=error", log.read_text())

    @unittest.skipUnless(NODE_EXPORTER, "node_exporter is not installed")
    def test_node_exporter_reads_the_text_file(self):
        (port,) = free_ports(1)
        log = self.folder / "node.log"
        self.running.start([NODE_EXPORTER, "--collector.disable-defaults", "--collector.textfile",
                            f"--collector.textfile.directory={self.folder}/node", f"--web.listen-address=127.0.0.1:{port}"], log)
        text = eventually(lambda: fetch(f"http://127.0.0.1:{port}/metrics"))
        self.assertTrue(text, log.read_text())
        self.assertRegex(text, r'(?m)^fsdp_step\{rank="0",run="odd \\"name\\""\} [0-9]')
        self.assertRegex(text, r"(?m)^# TYPE fsdp_tokens_total counter$")
        self.assertIn("\nnode_textfile_scrape_error 0\n", text)
        own = set(re.findall(r"(?m)^(fsdp_[a-z_]+)", (self.folder / "node/run.prom").read_text()))
        self.assertEqual(set(re.findall(r"(?m)^(fsdp_[a-z_]+)", text)), own)


class AFinishedRun(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.python = os.environ.get("FSDP_TEST_PYTHON", "python3")
        cls.folder = Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        subprocess.run([BIN / "fsdp-train", write_config(cls.folder), f"run.output_dir={cls.folder}/run", "training.steps=40",
                        "run.name=odd"], check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        cls.lines = [json.loads(line) for line in (cls.folder / "run/metrics.jsonl").read_text().splitlines()]

    def follow(self, to, **environment):
        if subprocess.run([self.python, "-c", f"import tomllib, {to}"], capture_output=True, cwd=self.folder).returncode != 0:
            self.skipTest(f"FSDP_TEST_PYTHON has no {to}")
        return subprocess.run([self.python, PROJECT / "scripts/follow_metrics", self.folder / "run", "--to", to, "--project", "odd"],
                              cwd=self.folder, capture_output=True, text=True, timeout=600, env={**os.environ, **environment})

    def read_back(self, code):
        read = subprocess.run([self.python, "-c", code], cwd=self.folder, capture_output=True, text=True, timeout=600)
        self.assertEqual(read.returncode, 0, read.stderr)
        return json.loads(read.stdout.splitlines()[-1])

    def test_wandb_has_every_line_and_the_config(self):
        done = self.follow("wandb", WANDB_MODE="offline", WANDB_SILENT="true")
        self.assertEqual(done.returncode, 0, done.stderr)
        records = self.read_back("""
import glob, json, struct
from wandb.proto.wandb_internal_pb2 import Record
data, at, part, lines, config = open(glob.glob("wandb/offline-run-*/*.wandb")[0], "rb").read(), 7, b"", [], {}
while at + 7 <= len(data):  # LevelDB's log: blocks of 32 KiB, records of checksum, length and kind
    if 32768 - at % 32768 < 7:
        at += 32768 - at % 32768
        continue
    length, kind = struct.unpack("<HB", data[at + 4:at + 7])
    part, at = part + data[at + 7:at + 7 + length], at + 7 + length
    if kind in (1, 4):  # whole, or the last part
        record, part = Record.FromString(part), b""
        if record.WhichOneof("record_type") == "history":
            lines.append({(item.key or item.nested_key[0]): json.loads(item.value_json) for item in record.history.item})
        elif record.WhichOneof("record_type") == "run":
            config.update({item.key: json.loads(item.value_json) for item in record.run.config.update})
print(json.dumps([lines, config]))
""")
        lines = [{key: value for key, value in line.items() if not key.startswith("_")} for line in records[0]]
        self.assertEqual(lines, self.lines)
        self.assertEqual(records[1]["training"]["steps"], 40)

    def test_mlflow_has_every_number_and_goes_on_where_it_stopped(self):
        uri = f"sqlite:///{self.folder}/mlflow.db"
        for _ in range(2):  # the second finds everything there
            done = self.follow("mlflow", MLFLOW_TRACKING_URI=uri)
            self.assertEqual(done.returncode, 0, done.stderr)
        found = self.read_back(f"""
import json, mlflow
client = mlflow.MlflowClient("{uri}")
(run,) = client.search_runs([client.get_experiment_by_name("odd").experiment_id])
history = lambda key: [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, key)]
print(json.dumps([history("loss"), history("validation_loss"), run.data.params["training.steps"], run.info.status]))
""")
        self.assertEqual(found[0], [[line["step"], line["loss"]] for line in self.lines if "loss" in line])
        # Whether the last validation was logged before an interruption is not known, so it may be there twice.
        validations = [[line["step"], line["validation_loss"]] for line in self.lines if "validation_loss" in line]
        self.assertEqual(found[1][:len(validations)], validations)
        self.assertEqual(found[2:], ["40", "FINISHED"])


if __name__ == "__main__":
    unittest.main()
