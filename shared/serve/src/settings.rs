//! The command line.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::Parser;

/// Serves a language model over HTTP, as clients of OpenAI's completions ask for it
#[derive(Clone, Debug, Parser)]
#[command(
    name = "lab-serve",
    version,
    after_help = "\
Exit codes: 0 stopped by SIGINT or SIGTERM; 1 the device failed; 2 bad usage or\n\
bad input; 3 the emulator's checks found something; 4 no such device or driver."
)]
pub struct Settings {
    /// A file that `lab lm train` or `lab lm quantize` wrote, a directory of Hugging Face (model_type xlstm or llama), or a state dict
    /// of xlstm_large
    pub model: PathBuf,
    /// The address to listen at; there is no authentication
    #[arg(long, default_value = "127.0.0.1")]
    pub host: IpAddr,
    /// The port; 0 for one that is free. The address stands on stdout, in one line
    #[arg(long, default_value_t = 8000)]
    pub port: u16,
    /// What clients call the model; its file's name where it is not said
    #[arg(long)]
    pub name: Option<String>,
    /// Sequences that are decoded at once
    #[arg(long, default_value_t = 8)]
    pub slots: usize,
    /// Requests that may wait for a slot; others are refused with 503
    #[arg(long, default_value_t = 64)]
    pub queue: usize,
    /// Tokens of a prompt and of what follows it, together
    #[arg(long, default_value_t = 4096)]
    pub length: usize,
    /// Tokens of a long prompt that are read between two steps of the other sequences, at most: a power of two. A longer piece reads
    /// prompts sooner; texts under way wait longer for their next token
    #[arg(long, default_value_t = 512)]
    pub prompt_piece: usize,
    /// Bytes of a request's body
    #[arg(long, default_value_t = 1 << 20)]
    pub body: usize,
    /// Seconds from a request to the end of its answer
    #[arg(long, default_value_t = 600)]
    pub timeout: u64,
    /// Seconds that requests have to end when the server is told to stop
    #[arg(long, default_value_t = 30)]
    pub grace: u64,
    /// What the model runs in: auto (bf16 on a GPU, f32 on the emulator), f32 or bf16
    #[arg(long, default_value = "auto")]
    pub dtype: String,
    /// What the vLSTM's memory is kept in: f32, or in runs of bf16 also bf16, which halves its bytes
    #[arg(long, default_value = "f32")]
    pub states: String,
    /// auto, cuda, cuda:N or emulator
    #[arg(long, env = "LAB_DEVICE", default_value = "auto")]
    pub device: String,
}
