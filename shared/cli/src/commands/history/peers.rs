//! What others take for the same: `benches/peers`, each measured by the script beside it.

use std::path::Path;

use lab_harness::{Dims, Error};
use serde::Deserialize;
use serde_json::Value;

/// The files, what to call the peer of a file that names none, and the families of its two times.
const FILES: [(&str, &str, [&str; 2]); 3] = [
    ("lstm.json", "cuDNN", ["lstm_fw", "lstm"]),
    ("vlstm.json", "mlstm_kernels in Triton", ["vlstm_fw", "vlstm_fwbw"]),
    ("mlp.json", "PyTorch", ["", "mlp"]),
];

/// One peer's times on one problem.
pub(super) struct Peer {
    pub(super) family: String,
    pub(super) name: String,
    pub(super) dims: Dims,
    /// A version's type: `tf32` is one of the ways to compute in f32.
    pub(super) dtype: String,
    pub(super) median_us: f64,
    /// Replayed as a graph.
    pub(super) replay_us: Option<f64>,
}

/// Where the peers of a file were measured.
pub(super) struct Origin {
    pub(super) file: &'static str,
    pub(super) families: [&'static str; 2],
    pub(super) gpu: String,
    /// Libraries with their versions.
    pub(super) versions: Vec<String>,
    /// The largest error in f32, where the file tells one.
    pub(super) error: Option<f64>,
}

#[derive(Deserialize)]
struct File {
    #[serde(flatten)]
    header: serde_json::Map<String, Value>,
    results: Vec<Line>,
}

/// A line of these files: as in a record, or the times of both families at once.
#[derive(Deserialize)]
#[serde(untagged)]
enum Line {
    Measured {
        version: String,
        family: String,
        dtype: String,
        shape: String,
        median_us: f64,
        replay_us: Option<f64>,
    },
    Both {
        shape: std::collections::BTreeMap<String, usize>,
        dtype: String,
        fw_us: f64,
        fwbw_us: f64,
        fw_graph_us: Option<f64>,
        fwbw_graph_us: Option<f64>,
        error: Option<f64>,
    },
    /// A peer that could not run says why.
    Failed {
        #[serde(rename = "failed")]
        _reason: Value,
    },
}

/// All peers there are, and where they were measured.
pub(super) fn read_all(directory: &Path) -> Result<(Vec<Peer>, Vec<Origin>), Error> {
    let (mut peers, mut origins) = (Vec::new(), Vec::new());
    for (file, name, families) in FILES {
        let read: File = super::read(directory, file)?;
        let path = directory.join(file).display().to_string();
        let mut origin = origin(&read.header, file, families).ok_or_else(|| Error::File {
            path: path.clone(),
            message: "expected the GPU under gpu or device.gpu, got none".into(),
        })?;
        origin.error = read.results.iter().filter_map(Line::error_in_f32).max_by(f64::total_cmp);
        origins.push(origin);
        for line in read.results {
            peers.extend(
                line.peers(name, families)
                    .map_err(|e| Error::File { path: path.clone(), message: e.to_string() })?,
            );
        }
    }
    Ok((peers, origins))
}

fn origin(
    header: &serde_json::Map<String, Value>,
    file: &'static str,
    families: [&'static str; 2],
) -> Option<Origin> {
    let device = header.get("device").and_then(Value::as_object).unwrap_or(header);
    let gpu = device.get("gpu")?.as_str()?.to_owned();
    let versions = device.get("versions").and_then(Value::as_object).unwrap_or(device);
    let versions = versions.iter().filter(|v| v.0 != "gpu").map(|(name, version)| {
        let text = version.as_str().map_or_else(|| version.to_string(), str::to_owned);
        format!("{name} {text}")
    });
    Some(Origin { file, families, gpu, versions: versions.collect(), error: None })
}

impl Line {
    fn error_in_f32(&self) -> Option<f64> {
        match self {
            Self::Both { dtype, error, .. } if dtype == "f32" => *error,
            _ => None,
        }
    }

    fn peers(self, name: &str, families: [&str; 2]) -> Result<Vec<Peer>, Error> {
        Ok(match self {
            Self::Failed { .. } => Vec::new(),
            Self::Measured { version, family, dtype, shape, median_us, replay_us } => {
                let (dtype, note) = match dtype.as_str() {
                    "tf32" => ("f32".to_owned(), ", TF32"),
                    _ => (dtype, ""),
                };
                let name = format!("{version}{note}");
                vec![Peer { family, name, dims: Dims::parse(&shape)?, dtype, median_us, replay_us }]
            }
            Self::Both { shape, dtype, fw_us, fwbw_us, fw_graph_us, fwbw_graph_us, .. } => {
                let text: Vec<_> = shape.iter().map(|(k, v)| format!("{k}={v}")).collect();
                let dims = Dims::parse(&text.join(","))?;
                let times = [(fw_us, fw_graph_us), (fwbw_us, fwbw_graph_us)];
                let peer = |(family, (median_us, replay_us)): (&str, _)| Peer {
                    family: family.to_owned(),
                    name: name.to_owned(),
                    dims: dims.clone(),
                    dtype: dtype.clone(),
                    median_us,
                    replay_us,
                };
                families.into_iter().zip(times).map(peer).collect()
            }
        })
    }
}

impl Peer {
    /// How many of its runs make one of this problem, if any: a run of `mlp` is N steps, and the
    /// peer's is one.
    pub(super) fn runs_of(&self, dims: &Dims) -> Option<f64> {
        let same = |(name, size): (&str, usize)| self.dims.find(name) == Some(size);
        let (own, others) = (dims.iter().count(), self.dims.iter().count());
        let but_n = dims.iter().filter(|d| d.0 != "N").all(same) && own == others;
        match (dims.find("N"), self.dims.find("N")) {
            (Some(steps), Some(1)) if but_n && self.family == "mlp" => Some(steps as f64),
            _ => (own == others && dims.iter().all(same)).then_some(1.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dims(text: &str) -> Dims {
        Dims::parse(text).unwrap()
    }

    #[test]
    fn both_formats_are_read() {
        let text = r#"{"device": {"gpu": "G", "torch": "2"}, "results": [
            {"version": "compiled", "of": "library", "family": "mlp", "dtype": "tf32",
             "shape": "B=1,N=1", "median_us": 3.0, "replay_us": 2.0},
            {"version": "torch", "family": "mlp", "failed": "no memory"},
            {"shape": {"B": 1, "H": 2}, "dtype": "bf16", "fw_us": 1.0, "fwbw_us": 4.0}]}"#;
        let file: File = serde_json::from_str(text).unwrap();
        let from = origin(&file.header, "a.json", ["f", "b"]).unwrap();
        assert_eq!((&*from.gpu, &*from.versions), ("G", &["torch 2".to_owned()][..]));
        let lines = file.results.into_iter();
        let all: Vec<Peer> = lines.flat_map(|l| l.peers("P", ["f", "b"]).unwrap()).collect();
        let told: Vec<_> = all
            .iter()
            .map(|p| (&*p.family, &*p.name, &*p.dtype, p.median_us, p.replay_us))
            .collect();
        assert_eq!(
            told,
            [
                ("mlp", "compiled, TF32", "f32", 3.0, Some(2.0)),
                ("f", "P", "bf16", 1.0, None),
                ("b", "P", "bf16", 4.0, None)
            ]
        );
    }

    #[test]
    fn a_peer_is_of_the_same_problem_or_of_a_step_of_it() {
        let mut peer = Peer {
            family: "mlp".into(),
            name: "torch".into(),
            dims: dims("B=1,E=2,N=1"),
            dtype: "f32".into(),
            median_us: 1.0,
            replay_us: None,
        };
        assert_eq!(peer.runs_of(&dims("B=1,E=2,N=16")), Some(16.0));
        assert_eq!(peer.runs_of(&dims("B=1,E=3,N=16")), None);
        assert_eq!(peer.runs_of(&dims("B=1,E=2")), None);
        peer.dims = dims("B=1,E=2,N=2");
        assert_eq!(peer.runs_of(&dims("B=1,E=2,N=2")), Some(1.0));
        assert_eq!(peer.runs_of(&dims("B=1,E=2,N=16")), None);
    }
}
