#include "setup/config/foreign_names.h"

#include <algorithm>
#include <cctype>
#include <iterator>
#include <sstream>

#include "base/util/error.h"
#include "base/util/text.h"
#include "setup/config/keys.h"

namespace fsdp::config {
namespace {

constexpr ForeignName kNames[] = {
    // The run.
    {"run.name", "run_name experiment_name job.description wandb_run_name"},
    {"run.output_dir", "dump_folder save_dir out_dir save_path checkpoint_dir output_folder"},
    {"run.output_dir",
     "logging_dir save_tb_folder save_traces_folder save_memory_snapshot_folder checkpoint.folder tensorboard_dir",
     ", which has checkpoints, logs and traces"},
    {"run.seed", "random_seed manual_seed"},
    {"run.seed", "data_seed", ", which sets the order of the data too"},
    {"run.plugins", "custom_import custom_args_module custom_config_module user_dir",
     ", plug-ins of this program"},

    // The model.
    {"model.preset", "flavor model.name arch base_model_config model_config",
     ", or model.init_from for weights beside a description of their model"},
    {"model.architecture", "model_type model_arch", " if no description of the model is beside the weights"},
    {"model.init_from",
     "model_name_or_path base_model pretrained_model_name_or_path initial_load_path finetune_from_model "
     "load_checkpoint_path pretrained_checkpoint"},
    {"model.init_from",
     "reset_optimizer reset_dataloader reset_lr_scheduler reset_meters initial_load_in_hf initial_load_model_only",
     ", which restores weights alone"},
    {"model.init_broadcast",
     "fsdp_cpu_ram_efficient_loading cpu_ram_efficient_loading fsdp_sync_module_states sync_module_states low_cpu_mem_usage"},
    {"model.num_hidden_layers", "n_layer n_layers num_layers decoder_layers"},
    {"model.num_attention_heads", "n_head n_heads num_heads decoder_attention_heads"},
    {"model.num_key_value_heads", "n_kv_heads num_query_groups n_query_groups"},
    {"model.hidden_size", "n_embd decoder_embed_dim d_model embed_dim model.dim"},
    {"model.intermediate_size",
     "decoder_ffn_embed_dim ffn_hidden_size ffn_dim d_ff n_inner intermediate_dim"},
    {"model.max_position_embeddings", "max_target_positions n_positions n_ctx"},
    {"model.hidden_dropout", "dropout resid_pdrop hidden_dropout_prob"},
    {"model.attention_dropout", "attn_dropout attn_pdrop attention_probs_dropout_prob"},
    {"model.embedding_dropout", "embd_pdrop embed_dropout"},
    {"model.tie_word_embeddings", "share_decoder_input_output_embed tie_embeddings enable_weight_tying"},
    {"model.rope_type", "rope_scaling"},
    {"model.rms_norm_eps", "norm_eps norm_epsilon"},
    {"model.initializer_range", "init_method_std init_std"},

    // Adapters.
    {"lora.rank", "r lora_r lora_rank finetuning_type use_peft use_lora peft_type"},
    {"lora.rank", "adapter", ", with lora.quantize = \"nf4\" for qlora"},
    {"lora.alpha", "lora_alpha"},
    {"lora.dropout", "lora_dropout"},
    {"lora.targets",
     "target_modules lora_target_modules lora_target exclude_modules layers_to_transform layers_pattern",
     ", patterns of whole names such as \"*q_proj\""},
    {"lora.targets = [\"*\"]", "lora_target_linear"},
    {"lora.use_rslora", "peft_use_rslora rslora"},
    {"lora.dora", "use_dora peft_use_dora"},
    {"lora.quantize = \"nf4\"", "load_in_4bit qlora"},
    {"lora.quantize = \"int8\"", "load_in_8bit"},
    {"lora.quantize", "bnb_4bit_quant_type quantization_bit quantization_method"},
    {"lora.init_from", "lora_model_dir adapter_name_or_path peft_model_id"},

    // Data.
    {"data.train",
     "dataset_path datasets training.dataset dataset dataset_name dataset_dir train_file train_subset input_bin "
     "train_data data_path dataset_prepared_path",
     ", token files that fsdp-data tokenize writes"},
    {"data.validation",
     "val_set_size test_datasets eval_dataset validation.dataset validation.dataset_path validation_file "
     "valid_subset val_size input_val_bin valid_data",
     ", token files that fsdp-data tokenize --validation-output writes"},
    {"data.train_weights", "dataset_weights interleave_probs mixture_weights"},
    {"data.tokenizer",
     "tokenizer_name tokenizer_path hf_assets_path tokenizer_config tokenizer_name_or_path"},
    {"data.tokenizer", "tokenizer_type", ", a folder or file from which the kind of tokenizer follows"},
    {"data.sequence_length",
     "seq_len sequence_len max_seq_length max_seq_len seq_length block_size tokens_per_sample max_length model_max_length "
     "cutoff_len context_length"},
    {"data.micro_batch_size",
     "local_batch_size per_device_train_batch_size train_batch_size batch_size device_batch_size max_sentences "
     "train_micro_batch_size_per_gpu per_gpu_train_batch_size"},
    {"data.micro_batch_size",
     "per_device_eval_batch_size eval_batch_size batch_size_valid validation.local_batch_size",
     ", which validation uses too"},
    {"data.max_tokens", "group_by_length batch_by_tokens bucket_by_length",
     ", with data.documents = \"split\", for rows of similar length"},
    {"data.documents", "sample_break_mode"},
    {"data.documents = \"mask\"",
     "sample_packing packing eval_packing eval_sample_packing neat_packing multipack"},
    {"data.train_on = \"assistant\"",
     "assistant_only_loss completion_only_loss train_on_responses_only roles_to_train"},
    {"data.train_on = \"assistant\"", "train_on_inputs train_on_prompt",
     " for train_on_inputs = false, which counts the assistant's tokens alone"},
    {"data.train_on = \"last\"", "mask_history"},
    {"data.prefetch_batches",
     "num_workers dataloader_num_workers dataloader_prefetch_factor preprocessing_num_workers prefetch_factor "
     "data_buffer_size",
     " if one thread that prepares 2 batches ahead is too slow"},
    {"data.shuffle", "shuffle_dataset dataset_shuffle dataloader_shuffle"},
    {"data.allow_changed", "ignore_data_skip"},

    // Training.
    {"training.steps",
     "max_steps max_update max_iters num_iterations train_iters train_steps num_steps max_train_steps "
     "total_num_update lr_decay_iters total_steps num_training_steps"},
    {"training.epochs", "num_train_epochs num_epochs max_epoch max_epochs"},
    {"training.stop_after_hours", "stop_time_hours"},
    {"training.global_batch_size", "total_batch_size", ", which counts samples, not tokens"},
    {"training.gradient_accumulation_steps",
     "update_freq grad_accum_steps accumulate_grad_batches gradient_accumulation grad_accumulation_steps"},
    {"training.max_grad_norm",
     "max_norm clip_norm grad_clip clip_grad gradient_clipping gradient_clip_val grad_norm_clip clip_grad_norm"},
    {"training.device = \"cpu\"", "use_cpu no_cuda"},
    {"training.device", "use_cuda accelerator"},
    {"training.float32_matmul_precision = \"high\"", "tf32 allow_tf32"},
    {"training.fused_kernels", "fused optimizer.implementation bias_gelu_fusion"},
    {"training.float8",
     "fp8 float8.recipe_name model.converters converters fp8_recipe enable_fp8 float8.enable_float8_linear"},
    {"training.float8_exclude", "filter_fqns"},
    {"training.deterministic", "full_determinism use_deterministic_algorithms cudnn_deterministic"},
    {"training.skip_zscore", "loss_watchdog_threshold"},
    {"training.max_skipped_steps", "loss_watchdog_patience"},
    {"training.loss", "criterion loss_fn"},
    {"training.label_smoothing", "label_smoothing_factor"},
    {"training.z_loss", "z_loss_weight z_loss_multiplier"},

    // Distillation.
    {"training.objective = \"distill\"", "kd_trainer use_kd", ", with distillation.teacher_model"},
    {"distillation.teacher_model", "teacher_model_name_or_path teacher_model teacher_model_path"},
    {"distillation.teacher_model", "teacher_checkpointer teacher_checkpoint", ", a path of weights"},
    {"distillation.alpha", "kd_ratio"},
    {"distillation.alpha", "kd_alpha kd_ce_alpha",
     ", the share of kd_alpha * kd_temperature^2 in the sum of that and kd_ce_alpha"},
    {"distillation.beta", "kd_beta"},
    {"distillation.beta", "kd_loss", ", 0 for the forward divergence and 1 for the reverse one"},
    {"distillation.temperature", "kd_temperature", ", by whose square the loss is not multiplied"},
    {"distillation.top_k", "kd_online_topk kd_top_k gkd_logits_topk",
     ", where all other tokens count as one"},

    // Preferences.
    {"training.objective", "rl pref_loss loss_type dpo_loss_type",
     ", such as dpo, orpo or kto, or training.loss for texts"},
    {"preference.beta", "beta rl_beta dpo_beta kto_beta simpo_beta orpo_beta orpo_alpha pref_beta"},
    {"preference.label_smoothing", "dpo_label_smoothing"},
    {"preference.length_normalised", "dpo_norm_loss"},
    {"preference.desirable_weight", "kto_desirable_weight kto_chosen_weight"},
    {"preference.undesirable_weight", "kto_undesirable_weight kto_rejected_weight"},
    {"preference.reference_model", "ref_model ref_model_name_or_path"},
    {"preference.reference = \"stored\"", "precompute_ref_log_probs"},

    // Evaluation.
    {"evaluation.interval_steps",
     "eval_steps eval_interval eval_freq validate_interval_updates validation.freq val_check_interval "
     "val_loss_every eval_every val_interval"},
    {"evaluation.interval_steps",
     "evals_per_epoch eval_strategy evaluation_strategy validate_interval validation.enable eval_on_start",
     ", which counts steps: validations are not tied to epochs"},
    {"evaluation.max_samples", "max_eval_samples"},
    {"evaluation.max_samples", "eval_iters validation.steps val_max_steps eval_batches",
     ", which counts samples, not batches"},
    {"evaluation.patience", "early_stopping_patience"},
    {"evaluation.min_delta", "early_stopping_threshold"},
    {"evaluation.best_metric", "metric_for_best_model best_checkpoint_metric"},
    {"evaluation.best_metric", "greater_is_better maximize_best_checkpoint_metric",
     ", whose direction is known"},
    {"evaluation.accuracy", "report_accuracy"},

    // The optimizer and its rate.
    {"optimizer.name", "optim optimizer optimizer_type optimizer_name"},
    {"optimizer.name = \"adafactor\"", "adafactor"},
    {"optimizer.lr", "learning_rate max_lr peak_lr base_lr"},
    {"optimizer.betas", "adam_beta1 adam_beta2 beta1 beta2 adam_betas", ", a list of both"},
    {"optimizer.eps", "adam_epsilon adam_eps epsilon opt_eps"},
    {"optimizer.weight_decay", "wd l2_penalty adam_weight_decay"},
    {"optimizer.no_decay", "no_weight_decay_params no_decay_params"},
    {"optimizer.groups", "loraplus_lr_ratio lr_groups embedding_lr param_groups",
     ", tables with a pattern and lr or lr_scale"},
    {"optimizer.state_dtype",
     "exp_avg_dtype exp_avg_sq_dtype mu_dtype opt_m_dtype opt_v_dtype optim_state_dtype optimizer_state_dtype"},
    {"optimizer.state_dtype = \"bfloat16\"", "use_precision_aware_optimizer"},
    {"optimizer.offload = \"stream\"", "optimizer_cpu_offload paged_optimizer"},
    {"optimizer.state_dtype = \"int8\"", "optimizer_8bit use_8bit_optimizer use_8bit_adam"},
    {"optimizer.ema_decay", "ema use_ema ema_rate store_ema"},
    {"optimizer.momentum", "sgd_momentum muon_momentum"},
    {"lr_scheduler.name",
     "lr_scheduler lr_scheduler_type decay_type lr_decay_style scheduler scheduler_type lr_schedule decay_lr"},
    {"lr_scheduler.warmup_steps",
     "warmup_updates warmup_iters warmup_iterations lr_warmup_iters num_warmup_steps lr_warmup_steps"},
    {"lr_scheduler.warmup_ratio", "warmup_fraction lr_warmup_fraction warmup_proportion"},
    {"lr_scheduler.decay_steps", "decay_ratio num_decay_steps cooldown_steps lr_wsd_decay_iters",
     ", with lr_scheduler.name = \"wsd\""},
    {"lr_scheduler.min_lr_ratio",
     "cosine_min_lr_ratio min_lr_factor learning_rate_decay_frac min_lr_rate lr_min_ratio"},
    {"lr_scheduler.min_lr_ratio", "min_lr lr_min end_learning_rate eta_min",
     ", that rate divided by optimizer.lr"},
    {"lr_scheduler.hold_steps", "tri_stage_hold_steps"},
    {"lr_scheduler.power", "lr_power poly_power"},

    // Sharding.
    {"fsdp.strategy", "ddp_backend", ", or comm.backend for a library such as nccl"},
    {"fsdp.strategy",
     "fsdp sharding_strategy fsdp_sharding_strategy zero_stage zero_sharding deepspeed "
     "use_distributed_optimizer data_parallel_type"},
    {"fsdp.strategy", "fsdp_version", ", which does not depend on a version: leave it out"},
    {"fsdp.min_num_params", "fsdp_min_num_params min_params_to_wrap"},
    {"fsdp.min_num_params", "fsdp_auto_wrap_policy auto_wrap_policy auto_wrap",
     ", the least size of a unit, or fsdp.wrap_stages, their types"},
    {"fsdp.wrap_stages",
     "fsdp_transformer_layer_cls_to_wrap transformer_layer_cls_to_wrap fsdp_final_layer_cls_to_wrap",
     ", types of stages such as \"block\""},
    {"fsdp.replicated_parameters", "ignored_modules ignored_parameters ignored_states"},
    {"fsdp.reshard_after_forward", "fsdp_reshard_after_forward"},
    {"fsdp.reshard_after_forward = false", "no_reshard_after_forward"},
    {"fsdp.forward_prefetch", "fsdp_forward_prefetch", ", which is implicit by default: leave it out"},
    {"fsdp.backward_prefetch", "fsdp_backward_prefetch fsdp_backward_prefetch_policy"},
    {"fsdp.limit_all_gathers", "fsdp_limit_all_gathers"},
    {"fsdp.cpu_offload",
     "enable_cpu_offload fsdp_offload_params offload_params offload_to_cpu move_params_to_cpu fsdp_cpu_offload "
     "optimizer_offload"},
    {"fsdp.gather_dtype = \"int8\"", "zero_quantized_weights zero_quantized_nontrainable_weights"},
    {"fsdp.reduce_dtype = \"int4\"", "zero_quantized_gradients", ", or \"int8\""},
    {"fsdp.error_feedback = true", "zeropp_loco_param"},
    {"fsdp.hybrid_optimizer = \"global\"", "zero_hpz_partition_size hpz_partition_size",
     ", with fsdp.strategy = \"hybrid_shard\" and this size as mesh.data"},
    {"fsdp.layout", "use_orig_params fsdp_use_orig_params flatten_parameters",
     ", which does not change results: leave it out"},
    {"fsdp.param_storage = \"float16\"", "memory_efficient_fp16"},
    {"fsdp.param_storage = \"bfloat16\"", "memory_efficient_bf16 pure_bf16"},
    {"mesh.dcn", "data_parallel_replicate_degree dp_replicate_size dp_replicate num_replicas replica_degree"},
    {"mesh.data",
     "data_parallel_shard_degree dp_shard_size dp_shard fsdp_size data_parallel_degree data_parallel_size"},
    {"mesh.model",
     "tensor_parallel_degree tensor_parallel_size tensor_model_parallel_size tp_size tp_degree "
     "model_parallel_size"},
    {"mesh.context",
     "context_parallel_degree context_parallel_size cp_size cp_degree sequence_parallel_degree "
     "sequence_parallel_size"},
    {"mesh.context_attention", "context_parallel_rotate_method ring_attn_func"},
    {"mesh.sequence_parallel", "enable_sequence_parallel"},
    {"comm.timeout_seconds", "ddp_timeout train_timeout_seconds nccl_timeout"},
    {"comm.timeout_seconds", "init_timeout_seconds", ", for the rendezvous too"},
    {"comm.timeout_seconds", "distributed_timeout_minutes", ", in seconds"},
    {"comm.backend", "distributed_backend dist_backend process_group_backend xpu_backend"},

    // Types and memory.
    {"mixed_precision.param_dtype = \"bfloat16\"", "bf16 use_bf16 bfloat16"},
    {"mixed_precision.param_dtype = \"float16\"", "fp16 use_fp16 float16"},
    {"mixed_precision.param_dtype",
     "mixed_precision_param mixed_precision dtype torch_dtype compute_dtype precision bnb_4bit_compute_dtype "
     "fp16_opt_level half_precision_backend amp"},
    {"mixed_precision.reduce_dtype",
     "mixed_precision_reduce grad_reduce_dtype accumulate_allreduce_grads_in_fp32"},
    {"mixed_precision.reduce_dtype = \"float32\"", "fp32_reduce_scatter"},
    {"loss_scaler.init_scale", "fp16_init_scale initial_loss_scale"},
    {"loss_scaler.init_scale", "initial_scale_power", ", 2 to that power"},
    {"loss_scaler.growth_interval", "fp16_scale_window loss_scale_window"},
    {"loss_scaler.min_scale", "min_loss_scale"},
    {"activation_checkpointing.mode", "activation_checkpoint.mode recompute_granularity ac_mode recompute"},
    {"activation_checkpointing.mode = \"full\"",
     "gradient_checkpointing activation_checkpointing checkpoint_activations fsdp_activation_checkpointing recompute_activations "
     "enable_activation_checkpointing"},
    {"activation_checkpointing.mode = \"offload\"",
     "activation_offloading enable_activation_offload enable_activation_offloading offload_activations "
     "fine_grained_activation_offloading"},
    {"activation_checkpointing.stage_types", "ac_stage_types recompute_modules"},
    {"activation_checkpointing.feed_forward_tokens", "tiled_mlp tiled_mlp_num_shards",
     ", a number of tokens"},

    // Checkpoints.
    {"checkpoint.interval_steps",
     "save_steps save_interval_updates checkpoint.interval checkpoint.freq checkpoint_every save_every "
     "checkpoint_interval ckpt_freq"},
    {"checkpoint.interval_steps",
     "saves_per_epoch save_strategy save_interval no_epoch_checkpoints no_save checkpoint.enable "
     "enable_checkpoint interval_type",
     ", which counts steps: saves are not tied to epochs"},
    {"checkpoint.interval_minutes", "train_time_interval save_checkpoint_secs save_checkpoints_secs",
     ", in minutes"},
    {"checkpoint.keep_last", "save_total_limit keep_latest_k keep_interval_updates keep_last_n_checkpoints"},
    {"checkpoint.keep_last", "keep_last_epochs", ", which counts checkpoints"},
    {"checkpoint.keep_best",
     "load_best_model_at_end keep_best_checkpoints save_best_checkpoint no_save_optimizer_best"},
    {"checkpoint.keep_every", "keep_interval_updates_pattern keep_every_n_steps"},
    {"checkpoint.asynchronous", "async_mode async_save write_checkpoints_asynchronously"},
    {"checkpoint.kind", "fsdp_state_dict_type state_dict_type use_sharded_state"},
    {"checkpoint.resume",
     "resume_from_checkpoint restore_file load_step auto_resume_from_checkpoints auto_resume resume_from",
     ", which is auto, never, latest or a path"},
    {"checkpoint.resume = \"never\"", "overwrite_output_dir"},
    {"checkpoint.init_only", "exclude_from_loading load_only"},

    // Logs.
    {"logging.interval_steps", "logging_steps log_freq log_interval log_every log_every_n_steps"},
    {"logging.interval_steps", "logging_strategy logging_first_step",
     ", which counts steps; the first one is logged: leave it out"},
    {"logging.tensorboard", "report_to enable_tensorboard tensorboard_logdir use_tensorboard log_with"},
    {"logging.profile_steps",
     "profile_freq enable_profiling profiler_steps profile profile_step_start profiler_active",
     ", a list of steps"},
    {"logging.memory_snapshot", "enable_memory_snapshot record_memory_history"},
    {"logging.trace_communication", "trace_buf_size"},
    {"logging.sample_tokens", "gen_t"},
    {"logging.sample_every", "generate_every"},

    // Names without a key.
    {"",
     "pipeline_parallel_* pipeline_model_parallel_size pp_size pp_degree num_virtual_stages_per_pipeline_rank",
     "there is no pipeline parallelism: mesh.data, mesh.model and mesh.context divide a model that is too large"},
    {"",
     "expert_parallel_degree expert_tensor_parallel_degree expert_model_parallel_size expert_parallel_* ep_size ep_degree",
     "there is no expert parallelism: each expert is a unit, sharded over mesh.data"},
    {"", "enable_async_tensor_parallel disable_loss_parallel tp_comm_overlap",
     "tensor parallelism has no such switch: its keys are mesh.model and mesh.sequence_parallel"},
    {"",
     "accelerator_config split_batches even_batches use_seedable_sampler dispatch_batches non_blocking "
     "dataloader_* train_sampling_strategy length_column_name average_tokens_across_devices "
     "skip_memory_metrics eval_do_concat_batches project hub_token hub_strategy use_fast_tokenizer "
     "tokenizer_use_fast tokenizer_legacy strict overwrite_cache dataset_processes skip_prepare_dataset",
     "it is how the other program loads or reports: leave it out"},
    {"", "push_to_hub hub_model_id",
     "nothing is uploaded: fsdp-ckpt export writes a folder for Hugging Face's libraries"},
    {"", "streaming hf_dataset dataset_config_name dataset_split dataset_text_field text_column hub_*",
     "data sets are not streamed from a hub: data.train names local texts, and data.text_column their field"},
    {"", "trust_remote_code",
     "no code of models is run: model.architecture names the families, and run.plugins adds others"},
    {"",
     "last_save_model_only save_only_model model_weights_only no_save_optimizer_state save_safetensors "
     "last_save_in_hf export_dtype",
     "checkpoints always have the optimizer's state: fsdp-ckpt export writes the weights alone"},
    {"", "galore_* use_galore lomo use_badam relora_* use_lisa early_step_in_backward optim_target_modules",
     "there is no such optimizer: lora.rank and optimizer.name = \"adafactor\" save memory"},
    {"", "wandb_* enable_wandb use_wandb wandb mlflow_* comet_* swanlab_* neptune_* clearml_*",
     "runs are not sent to a tracking service: logging.tensorboard writes event files, and metrics.jsonl in run.output_dir has all numbers"},
    {"", "kd_normalize_topk",
     "probabilities of a teacher's likeliest tokens are not scaled up: with distillation.top_k all other tokens "
     "count as one"},
    {"", "kd_temperature_min kd_zscore_base_temp", "distillation.temperature is that of all steps"},
    {"", "lmbda seq_kd kd_online_*",
     "students do not learn from texts that are generated during training: data.train has their texts, which "
     "fsdp-generate may have written"},

    {"", "rpo_alpha dpo_rpo_alpha pref_ftx",
     "no cross entropy is added to DPO's loss: training.objective = \"cpo\" adds it by preference.cpo_alpha, without a reference"},
    {"", "reference_free",
     "DPO without a reference is training.objective = \"cpo\" with preference.cpo_alpha = 0"},
    {"", "sync_ref_model ref_model_mixup_alpha ref_model_sync_steps",
     "the reference stays as it is: preference.reference"},
    {"", "ref_model_adapters ref_model_quantization_bit ref_adapter_name",
     "the reference has whole weights: preference.reference_model, into which fsdp-ckpt export --merge merges adapters"},
    {"",
     "f_divergence_type f_alpha_divergence_coef discopop_tau use_weighting dpo_use_weighting ld_alpha "
     "loss_weights dpo_loss_weights pref_bco_weight dpop_lambda",
     "training.objective has no such variant of DPO"},
    {"", "max_prompt_length max_completion_length truncation_mode",
     "answers are cut at their ends, where a row of data.sequence_length cannot hold both documents"},
    {"",
     "precompute_ref_batch_size padding_free dpo_padding_free use_logits_to_keep dpo_use_logits_to_keep "
     "disable_dropout label_pad_token_id pad_token is_encoder_decoder model_init_kwargs ref_model_init_kwargs",
     "answers are computed without padding, and references without dropout: leave it out"},
    {"", "dpo_* kto_* orpo_*",
     "there is no such option: training.objective and [preference] have those of DPO, KTO, ORPO, SimPO and CPO"},
    {"", "grpo_* ppo_* reward_model* trl rlhf_* num_generations",
     "there is no training on rewards of generated answers: training.objective learns from answers in the data"},
    {"",
     "special_tokens added_tokens* additional_special_tokens tokens resize_vocab resize_token_embeddings*",
     "fsdp-data tokenize --chat --add-special-tokens adds the markers of a chat template to the tokenizer; "
     "model.vocab_size is the new number of tokens, and rows that init_from lacks become the mean of its rows"},
    {"", "chat_template template default_system_message train_on_eos train_on_eot",
     "chat templates are applied before training, by fsdp-data tokenize --chat --chat-template"},
    {"", "modules_to_save lora_modules_to_save additional_target",
     "no whole module is trained beside adapters: lora.rank freezes all other weights"},
    {"", "rank_pattern alpha_pattern", "all adapters have the same lora.rank and lora.alpha"},
    {"", "init_lora_weights loftq_config pissa_init",
     "adapters begin as in PEFT, A random and B zero: lora.init_from takes others"},
    {"", "lora_bias fan_in_fan_out lora_fan_in_fan_out task_type lora_on_cpu megatron_config",
     "it is not needed: lora.targets selects the layers, and only their weights get adapters"},
    {"", "bnb_4bit_use_double_quant double_quantization",
     "lora.quantize = \"nf4\" always quantizes the magnitudes of its blocks too"},
    {"", "neftune_noise_alpha noisy_embedding_alpha",
     "no noise is added to embeddings: model.embedding_dropout is the nearest regularization"},
    {"",
     "ddp_find_unused_parameters find_unused_parameters ddp_bucket_cap_mb bucket_cap_mb static_graph "
     "ddp_broadcast_buffers broadcast_buffers",
     "no buckets are searched or set: a unit is reduced as a whole, and fsdp.min_num_params sets its size"},
    {"", "auto_find_batch_size auto_scale_batch_size",
     "the size of a batch is not searched: fsdp-train --plan prints the largest data.micro_batch_size that fits"},
    {"",
     "local_rank nproc_per_node distributed_world_size distributed_port distributed_init_method num_nodes "
     "nnodes num_gpus devices device_id",
     "the launcher starts the processes: fsdp-launch --nproc-per-node"},
    {"", "gc_freq gc_steps torch_empty_cache_steps empty_cache_freq",
     "memory is freed as soon as it is unused, without collections: leave it out"},
    {"", "warmup_init_lr lr_warmup_init warmup_init",
     "the rate always rises from 0: lr_scheduler.warmup_steps is the length"},
    {"", "unfrozen_parameters freeze_*",
     "single weights cannot be frozen by a config: lora.rank trains adapters alone"},
    {"",
     "disable_tqdm no_progress_bar log_format log_level* disable_color_printing simple_log_format log_on_each_node "
     "logging_nan_inf_filter include_num_input_tokens_seen plot_loss log_first_step",
     "the log has one form, a line each logging.interval_steps: leave it out"},
    {"",
     "gradient_checkpointing_kwargs activation_checkpointing_kwargs flex_attn_* cut_cross_entropy "
     "lora_*_kernel fused_attn_kernel use_kernels experts_implementation use_scattermoe use_sonicmoe "
     "torchdistx_path device_map",
     "kernels and recomputation have one implementation here: leave it out"},
    {"", "quantize_moe_experts lora_target_parameters",
     "weights of experts get adapters by the patterns of lora.targets, as other linear layers"},
    {"", "processor_type image_* video_*",
     "images, video and sound are not read: only language models of texts are trained"},
    {"", "eot_tokens", "the template decides which tokens of a turn count: data.train_on"},
    {"", "max_samples", "all of a token file is used: fsdp-data tokenize a part of the texts instead"},
    {"", "eval_only", "fsdp-train CONFIG --evaluate WEIGHTS validates without training"},
    {"", "fault_tolerance.enable fault_tolerance.group_size fault_tolerance.min_replica_size",
     "replicas that outlive each other are started by fsdp-launch --replica-size"},
    {"", "compile compile.* torch_compile* torchdynamo* enable_compiled_autograd",
     "nothing is compiled at run time: training.fused_kernels, on by default, fuses operations"},
    {"",
     "flash_attention flash_attn* flash_optimum sdp_attention xformers_attention attn_implementation use_flash_attn",
     "attention always has a fused kernel, by training.fused_kernels: leave it out"},
    {"", "use_liger_kernel liger_*",
     "kernels are fused without a library, by training.fused_kernels: leave it out"},
    {"", "selective_ac_option per_op_sac_force_recompute_mm_shapes_by_fqns",
     "operations are not listed for recomputation: with activation_checkpointing.mode = \"selective\", activation_checkpointing.memory_budget selects the cheapest"},
    {"", "pad_to_sequence_len pad_to_max_length",
     "rows always have data.sequence_length tokens, or share data.max_tokens: leave it out"},
    {"", "print_config print_args", "fsdp-train CONFIG --print-config prints every key"},
    {"", "do_train do_eval do_predict predict_with_generate",
     "fsdp-train trains, and fsdp-generate generates and scores: leave it out"},
    {"", "stage", "it follows from other keys: data.train_on for conversations, lora.rank for adapters"},
    {"", "remove_unused_columns label_names column_names",
     "the token files of data.train have no columns: leave it out"},

    // Sections.
    {"", "[job] [trainer] [training_args] [train] [common] [dataset] [task]",
     "its keys are in [run], [training] and [data]"},
    {"", "[parallelism] [distributed] [distributed_training] [parallel]",
     "its keys are in [mesh], [fsdp] and [comm]"},
    {"", "[activation_checkpoint]", "its keys are in [activation_checkpointing]"},
    {"", "[validation] [eval]", "its keys are in [evaluation] and data.validation"},
    {"", "[metrics] [profiling] [wandb]", "its keys are in [logging]"},
    {"", "[optimization]", "its keys are in [training], [optimizer] and [lr_scheduler]"},
    {"", "[peft] [peft_config] [lora_config] [qlora]", "its keys are in [lora]"},
    {"", "[float8] [quantize] [experimental] [compile]", "its keys are in [training]"},
    {"", "[fault_tolerance]", "replicas that outlive each other are started by fsdp-launch --replica-size"},
    {"", "[fsdp_config] [deepspeed]", "its keys are in [fsdp] and [mixed_precision]"},
};

constexpr ForeignValue kValues[] = {
    {"training.device", "cuda", "gpu cuda:* nvidia"},
    {"", "bfloat16", "bf16 torch.bfloat16 bf16-mixed"},
    {"", "float16", "fp16 half torch.float16 16 fp16-mixed"},
    {"", "float32", "fp32 float single torch.float32 32 no"},
    {"fsdp.strategy", "full_shard",
     "fully_sharded fsdp fsdp2 zero3 zero_3 3 fully_shard true full_shard* deepspeed"},
    {"evaluation.best_metric", "validation_loss", "eval_loss"},
    {"evaluation.best_metric", "validation_rewards/accuracies", "eval_rewards/accuracies rewards/accuracies"},
    {"evaluation.best_metric", "validation_rewards/margins", "eval_rewards/margins rewards/margins"},
    {"training.objective", "dpo", "sigmoid"},
    {"training.objective", "language_model", "sft pt nll"},
    {"fsdp.strategy", "shard_grad_op", "zero2 zero_2 2 zero1 1 os shard_grad_op*"},
    {"fsdp.strategy", "hybrid_shard", "hsdp"},
    {"fsdp.strategy", "hybrid_shard_zero2", "_hybrid_shard_zero2"},
    {"fsdp.strategy", "no_shard", "ddp c10d pytorch_ddp legacy_ddp no_c10d replicate 0 false"},
    {"optimizer.name", "adamw", "adamw_* paged_adamw* fused_adam*"},
    {"optimizer.name", "lion", "lion_* paged_lion*"},
    {"lr_scheduler.name", "constant", "constant_with_warmup fixed none"},
    {"lr_scheduler.name", "cosine", "cosine_with_* cosine_annealing* cos"},
    {"lr_scheduler.name", "inverse_sqrt", "sqrt"},
    {"lr_scheduler.name", "polynomial", "polynomial_decay"},
    {"lr_scheduler.name", "wsd", "warmup_stable_decay trapezoidal"},
    {"activation_checkpointing.mode", "full", "true block uniform always"},
    {"activation_checkpointing.mode", "selective", "op memory_budget"},
    {"activation_checkpointing.mode", "offload", "unsloth offload_disk legacy"},
    {"activation_checkpointing.mode", "none", "false off"},
    {"lora.quantize", "nf4", "4 4bit int4 fp4 bnb_4bit qlora true"},
    {"lora.quantize", "int8", "8 8bit bnb_8bit llm_int8"},
    {"data.documents", "mask", "true"},
    {"data.documents", "join", "none false"},
    {"data.documents", "split", "eos complete complete_doc"},
    {"data.train_on", "assistant", "true responses completion completions"},
    {"checkpoint.asynchronous", "true", "async async_with_pinned_mem"},
    {"checkpoint.asynchronous", "false", "disabled"},
    {"checkpoint.kind", "sharded", "sharded_state_dict local_state_dict"},
    {"checkpoint.kind", "full", "full_state_dict"},
    {"fsdp.backward_prefetch", "pre", "backward_pre"},
    {"fsdp.backward_prefetch", "post", "backward_post"},
    {"fsdp.reshard_after_forward", "true", "always default"},
    {"fsdp.reshard_after_forward", "false", "never"},
    {"training.float8", "tensorwise", "true fp8 float8"},
    {"training.float8", "rowwise", "rowwise_with_gw_hp"},
    {"training.loss", "cross_entropy", "label_smoothed_cross_entropy nll ce"},
    {"mesh.context_attention", "gather", "allgather"},
    {"mesh.context_attention", "ring", "alltoall"},
    {"", "true", "yes on 1"},
    {"", "false", "no off 0"},
};

/// Returns the names without what their spellings differ in: "maxSteps" and "max-steps" are "maxsteps".
std::string plain(std::string_view names) {
  std::string result;
  for (char c : names) {
    if (c != '_' && c != '-') result += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return result;
}

std::vector<std::string> plain_list(std::string_view names) {
  std::istringstream words(plain(names));
  return {std::istream_iterator<std::string>(words), {}};
}

const ForeignName* row_of(const std::string& plain_name) {
  static const auto kPatterns = [] {
    std::vector<std::vector<std::string>> patterns;
    for (const ForeignName& row : kNames) patterns.push_back(plain_list(row.names));
    return patterns;
  }();
  for (size_t i = 0; i < kPatterns.size(); ++i) {
    if (util::matches_any(plain_name, kPatterns[i])) return &kNames[i];
  }
  return nullptr;
}

/// Returns the value of a flag for our key; VALUE if it cannot be one.
std::string value_for(const Key& key, const std::string& value) {
  Config defaults;
  const bool is_list = type_name(value_of(key, defaults)).starts_with("list");
  if (value.empty() || (is_list && !value.starts_with('['))) return "VALUE";
  const std::string choice = foreign_value_choice(key.full_name(), value, key.constraint.choices);
  return choice.empty() ? value : choice;
}

}  // namespace

const ForeignName* foreign_name(std::string_view section, std::string_view name) {
  const std::string path = plain(section.empty() ? std::string(name) : concat(section, ".", name));
  const ForeignName* row = row_of(path);
  return row != nullptr ? row : row_of(path.substr(path.rfind('.') + 1));
}

std::span<const ForeignName> foreign_names() { return kNames; }
std::span<const ForeignValue> foreign_values() { return kValues; }

std::string foreign_name_answer(std::string_view section, std::string_view name) {
  const ForeignName* row = foreign_name(section, name);
  if (row == nullptr) return "";
  if (row->ours.empty()) return std::string(row->remark);
  if (!row->remark.empty()) return concat("write ", row->ours, row->remark);
  const bool has_value = row->ours.find('=') != std::string_view::npos;
  return has_value ? concat("write ", row->ours, " if ", name, " is to be true")
                   : concat("write ", row->ours, " instead");
}

std::string foreign_flag_answer(std::string_view name, const std::string& value) {
  const ForeignName* row = foreign_name("", name);
  if (row == nullptr) return "";
  if (row->ours.empty()) return std::string(row->remark);
  const size_t dot = row->ours.find('.'), end = row->ours.find(" = ");
  const std::string_view section = row->ours.substr(0, dot), own = row->ours.substr(dot + 1, end - dot - 1);
  std::string ours(end == std::string_view::npos ? "" : row->ours.substr(end + 3));
  if (ours.empty()) ours = value_for(*find_key(section, own), value);
  if (ours.starts_with('"')) ours = ours.substr(1, ours.size() - 2);
  return concat("write ", util::shell_word(concat(section, ".", own, "=", ours)), row->remark);
}

std::string foreign_value_choice(std::string_view key, std::string_view value,
                                 const std::vector<std::string>& choices) {
  for (const ForeignValue& row : kValues) {
    const bool fits = row.key.empty() ? std::find(choices.begin(), choices.end(), row.ours) != choices.end()
                                      : row.key == key;
    if (fits && util::matches_any(plain(value), plain_list(row.names))) return std::string(row.ours);
  }
  return "";
}

}  // namespace fsdp::config
