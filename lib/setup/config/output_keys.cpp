// What a run leaves: [checkpoint] and [logging].

#include "setup/config/key_tables.h"

namespace fsdp::config {

std::vector<Key> output_keys() {
  return {
      {KEY(checkpoint, schedule),
       "interval: save every interval_steps or interval_minutes; continuous: begin a save when the previous "
       "one has ended (needs asynchronous); auto: at the interval that loses the least time, by what saves cost "
       "and how often the run has failed"},
      {KEY(checkpoint, interval_steps), "steps between saves; 0: only at the end", at_least(0),
       is("checkpoint.schedule", {"interval"}) && is("checkpoint.interval_minutes", {"0.0"})},
      {KEY(checkpoint, interval_minutes),
       "minutes between saves, by the clock of rank 0, in place of interval_steps; 0: interval_steps counts",
       at_least(0), is("checkpoint.schedule", {"interval"})},
      {KEY(checkpoint, save_at_end), "save after the last step"},
      {KEY(checkpoint, keep_last), "delete all but this many newest checkpoints; 0: keep all", at_least(0)},
      {KEY(checkpoint, keep_every),
       "also keep each checkpoint whose step is a multiple of this, which is saved too if saves go by time; 0: "
       "none",
       at_least(0), is_above_0("checkpoint.keep_last")},
      {KEY(checkpoint, keep_best),
       "save after each validation that is the best so far by evaluation.best_metric, keep that checkpoint and "
       "mark it by the link \"best\"",
       validates_regularly()},
      {KEY(checkpoint, kind),
       "sharded: one file per process; full: one file with whole tensors, written by rank 0"},
      {KEY(checkpoint, asynchronous), "copy the shards to host memory and write them while training goes on",
       is("checkpoint.kind", {"sharded"})},
      {KEY(checkpoint, permissions),
       "permissions of the files in the run's folder, restricted further by the umask: with 0640 the owner "
       "reads and writes and the group reads; whoever may read a folder may enter it",
       one_of({"0600", "0640", "0644", "0660", "0664", "0666"})},
      {KEY(checkpoint, verify_saved),
       "background: read each checkpoint back during training and compare hashes; a damaged one is renamed "
       "and the next step saved in its place; older ones are deleted only after that"},
      {KEY(checkpoint, resume), "auto (the newest, if there is one), never, latest, or a path", non_empty()},
      {KEY(checkpoint, upload_to),
       "folder in a store (s3:// or gs://) of this run alone, to which finished checkpoints are sent "
       "during training, with keep_last there too; a run without its folder resumes from there"},
      {KEY(checkpoint, init_from),
       "a checkpoint of another run: unless the run resumes, training starts at step 0 from its weights"},
      {KEY(checkpoint, init_only),
       "patterns (* and ?) of the parameters that are taken from init_from; none: all",
       is_given("checkpoint.init_from")},
      {KEY(checkpoint, init_missing),
       "patterns (* and ?) of the parameters that init_from may lack; they are initialized as without it",
       is_given("checkpoint.init_from")},

      {KEY(logging, interval_steps),
       "steps between log lines; the loss of a line is the mean over the steps since the last multiple of this",
       at_least(1)},
      {KEY(logging, timestamps),
       "begin log lines with the time in UTC (ISO 8601), which lines of metrics.jsonl always have"},
      {KEY(logging, trace_communication),
       "write a line per collective and per buffer to trace.rank<R>.jsonl"},
      {KEY(logging, peak_tflops),
       "TFLOP/s that a process can reach in matrix products, in param_dtype even with training.float8; MFU "
       "and HFU are relative to it. 0: from the data sheet of a known GPU, else measured at the start",
       at_least(0)},
      {KEY(logging, csv), "write metrics.csv beside metrics.jsonl: the same numbers as a table"},
      {KEY(logging, tensorboard), "write event files for TensorBoard into tensorboard/ of the run's folder"},
      {KEY(logging, metrics_port),
       "port at which Prometheus reads the metrics of the run, http://HOST:PORT/metrics; 0: none",
       between(0, 65535)},
      {KEY(logging, metrics_host),
       "address at which metrics are served; 0.0.0.0: all addresses of the host, where anybody who reaches the "
       "port reads them",
       non_empty(), is_above_0("logging.metrics_port")},
      {KEY(logging, metrics_ranks),
       "first: rank 0 serves metrics of the run; all: each rank also serves its own, at metrics_port plus its "
       "number on the host",
       is_above_0("logging.metrics_port")},
      {KEY(logging, metrics_textfile),
       "file, named *.prom, into which rank 0 writes the metrics for node_exporter's textfile collector"},
      {KEY(logging, profile_steps),
       "steps that libtorch's profiler records, each as profile.rank<R>.step<N>.json for Perfetto",
       at_least(1)},
      {KEY(logging, nvtx), "on a GPU: name operations and units for Nsight Systems by NVTX ranges",
       is_not("training.device", "cpu")},
      {KEY(logging, memory_snapshot),
       "on a GPU: record where memory is allocated, and write memory.rank<R>.pickle when it runs out",
       is_not("training.device", "cpu")},
      {KEY(logging, sample_every), "steps between samples of generated text in the log; 0: none",
       at_least(0)},
      {KEY(logging, sample_prompt), "prompt of the samples, encoded with data.tokenizer; empty: a new text",
       is_above_0("logging.sample_every")},
      {KEY(logging, sample_tokens), "tokens per sample", at_least(1), is_above_0("logging.sample_every")},
  };
}

}  // namespace fsdp::config
