//! Every committed record is readable, the committed schema is the one the code writes, and the README's figures stand in records.
#![allow(missing_docs)]

use lab_benches::{history_directory, lengths_directory, tuned_directory};
use lab_harness::Dims;
use lab_records::record::{self, Measurement};
use lab_records::tuned::{self, Tuned};

#[test]
fn every_record_is_valid() {
    let directories = [history_directory(), lengths_directory()];
    for run in directories.iter().flat_map(|path| record::read_all(path).unwrap()) {
        assert!(!run.results.is_empty() && run.device.copy_gbps > 0.0, "{}", run.date);
    }
}

/// `LAB_BLESS=1 cargo test -p lab-benches` writes it anew.
#[test]
fn the_schema_is_current() {
    let formats = [(history_directory(), record::schema()), (tuned_directory(), tuned::schema())];
    for (directory, schema) in formats {
        let path = directory.join("schema.json");
        if std::env::var_os("LAB_BLESS").is_some() {
            std::fs::create_dir_all(&directory).unwrap();
            std::fs::write(&path, &schema).unwrap();
        }
        assert_eq!(std::fs::read_to_string(&path).unwrap(), schema, "the format has changed");
    }
}

/// Each is readable, lies under its own name, and is of a tiling that its version still lists.
#[test]
fn every_tuned_tiling_is_valid() {
    for entry in std::fs::read_dir(tuned_directory()).unwrap() {
        let path = entry.unwrap().path();
        if path.ends_with("schema.json") {
            continue;
        }
        let tuned = Tuned::read(&path).unwrap();
        assert_eq!(path.file_name().unwrap().to_str().unwrap(), tuned.file_name());
        let version = lab_registry::named_one(&tuned.version, None, "").unwrap().version;
        let dims = Dims::parse(&tuned.shape).unwrap();
        let known = version.tilings(&dims, tuned.dtype.parse().unwrap());
        let listed = known.iter().any(|t| tuned::Trial::new(t, None).tiling == tuned.best.tiling);
        assert!(listed, "{}: {:?}", path.display(), tuned.best.tiling);
    }
}

/// Of each row of the README's table both figures stand in one record: in µs, or as the operations of a second that its time makes.
#[test]
fn the_figures_of_the_readme_stand_in_records() {
    let readme = history_directory().join("../../README.md");
    let readme = std::fs::read_to_string(readme).unwrap();
    let table = readme.split("| problem | here | compared with |").nth(1).unwrap();
    let rows: Vec<&str> = table.lines().skip(2).take_while(|line| line.starts_with('|')).collect();
    let graph: fn(&Measurement) -> Option<f64> = |line| line.replay_us;
    let launched: fn(&Measurement) -> Option<f64> = |line| Some(line.median_us);
    let teraflops: fn(&Measurement) -> Option<f64> = |line| line.tflops;
    let of_records = [
        ("20261128T051847Z", "K=4096,M=4096,N=4096", "bf16", ["v21_snake", "cublas"], teraflops),
        ("20261129T194238Z", "K=8192,M=512,N=512", "f32", ["v2_tiled", "cublas"], launched),
        ("20261129T182309Z", "DHHV=256,DHQK=128,NH=16,S=2048", "bf16", ["v1_roles", "jax"], graph),
        (
            "20261129T182426Z",
            "DHHV=256,DHQK=128,NH=16,S=2048",
            "bf16",
            ["v1_together", "jax"],
            graph,
        ),
        (
            "20261130T164007Z",
            "DHQK=128,NH=32,NKV=32,S=4096",
            "bf16",
            ["v4_fused", "fla_chunk"],
            graph,
        ),
        (
            "20261129T182542Z",
            "B=8,D=128,NH=16,NKV=16,S=2048",
            "bf16",
            ["v6_turns", "flash3"],
            launched,
        ),
        (
            "20261130T085838Z",
            "B=8,D=128,NH=16,NKV=16,S=2048",
            "bf16",
            ["v8_handed", "cudnn"],
            launched,
        ),
        ("20261129T182509Z", "B=64,H=512,I=512,T=512", "bf16", ["v6_wgmma_back", "cudnn"], graph),
        ("20261129T182526Z", "B=8,H=512,I=512,T=512", "f16", ["v5_wgmma_fw", "cudnn"], graph),
    ];
    let runs = record::read_all(&history_directory()).unwrap();
    for (row, (at, shape, dtype, names, figure)) in rows.iter().zip(of_records) {
        let compact = |date: &str| date.replace(['-', ':'], "");
        let run =
            runs.iter().find(|run| compact(&run.date) == at).unwrap_or_else(|| panic!("{at}"));
        let told: Vec<String> = names
            .map(|name| {
                let named = |line: &&Measurement| line.version.rsplit(':').next() == Some(name);
                let of = |line: &&Measurement| line.dtype == dtype && line.shape.ends_with(shape);
                let line = run.results.iter().filter(named).find(of);
                figure(line.unwrap_or_else(|| panic!("{at}: no {name}"))).unwrap()
            })
            .map(|figure| format!("{figure:.0}"))
            .to_vec();
        let shown: Vec<&str> = row.split(|c: char| !c.is_ascii_digit()).collect();
        assert!(
            told.iter().all(|figure| shown.contains(&figure.as_str())),
            "{row}: {told:?} ({at})"
        );
    }
    // The last two rows are of the language model's records, which tell the tokens of a second of each run.
    let of_models = history_directory().join("../language_model");
    let tokens = |file: &str, at: &str| -> Vec<f64> {
        let text = std::fs::read_to_string(of_models.join(file)).unwrap();
        let record: serde_json::Value = serde_json::from_str(&text).unwrap();
        let runs = record.pointer(at).unwrap().as_array().unwrap().iter();
        runs.flat_map(|run| match run["tokens_per_second"].as_array() {
            Some(all) => all.clone(),
            None => vec![run.clone()],
        })
        .filter_map(|value| value.as_f64())
        .collect()
    };
    let mut all = tokens("20261201-turns-nvidia-h200.json", "/turns/tokens_per_second");
    all.extend(tokens("20261129c-nvidia-h200.json", "/one_run"));
    assert_eq!(rows.len(), of_records.len() + 2);
    for row in &rows[of_records.len()..] {
        let figures = row
            .split('|')
            .flat_map(|cell| cell.split([' ', ':']))
            .filter_map(|word| word.replace(',', "").parse::<f64>().ok());
        let figures: Vec<f64> = figures.filter(|&figure| figure > 1e5).collect();
        assert_eq!(figures.len(), 2, "{row}");
        for figure in figures {
            let near = |told: &f64| (told - figure).abs() <= 500.0;
            assert!(all.iter().any(near), "{row}: {figure} stands in no run of {all:?}");
        }
    }
}
