//! The test of a model of a text.

use std::f64::consts::LN_2;
use std::path::Path;

use lab_harness::Error;
use lab_lstm::data::{Bigrams, Unigrams, Vocabulary, bits_per_token, read_text};
use lab_lstm::training::Evaluator;
use serde_json::json;

use super::source::{Source, as_data};
use super::states;
use super::tested::Tested;
use crate::commands::run::check_target;
use crate::commands::training::beside;
use crate::failure::Failure;
use crate::table::table;

pub(super) fn run(tested: &Tested<'_>, vocabulary: &Vocabulary) -> Result<(), Failure> {
    let settings = &tested.notes.settings;
    let Source::Text { tokens: trained, vocabulary: now, split } = Source::load(settings)? else {
        unreachable!("a model of a text was trained on one")
    };
    if now != *vocabulary {
        let expected = "the text that the model was trained on, with its characters";
        return Err(Error::bad(&settings.data, expected, "another").into());
    }
    let (name, tokens) = match tested.other() {
        Some(path) => ("all of it", vocabulary.encode(path, &read_text(Path::new(path))?)?),
        None => ("test part", trained[split.test.clone()].to_vec()),
    };
    let window = settings.window;
    if tokens.len() <= window {
        let expected = format!("more characters than a window, {window}");
        return Err(Error::bad("text to test on", expected, tokens.len()).into());
    }
    let picture = beside(tested.model, "states.svg");
    check_target(&picture)?;

    let data = as_data(&tokens, vocabulary);
    let starts = data.starts(window, window);
    let checkpoint = &tested.checkpoint;
    let mut evaluator = Evaluator::new(&tested.device, checkpoint.model, checkpoint.config, &data)?;
    evaluator.load(&checkpoint.parameters)?;
    let network = evaluator.loss(&starts)? / LN_2;
    // Of the same characters.
    let told = &tokens[..starts.len() * window + 1];
    let train = &trained[split.train.clone()];
    let unigrams = Unigrams::of(train, vocabulary.len());
    let bigrams = Bigrams::of(train, vocabulary.len());
    let bits = [
        ("network", network),
        ("bigrams", bits_per_token(told, |a, b| bigrams.probability(a, b))),
        ("unigrams", bits_per_token(told, |_, b| unigrams.probability(b))),
        ("all alike", (vocabulary.len() as f64).log2()),
    ];
    let analysis = states::of_text(tested, &tokens, vocabulary.characters(), &picture)?;
    if tested.common.json {
        let by = bits.map(|(n, b)| {
            (n.to_owned(), json!({ "bits_per_character": b, "perplexity": b.exp2() }))
        });
        let mut report = tested.json();
        report["of"] = json!(name);
        report["characters"] = json!(told.len() - 1);
        report["models"] = by.into_iter().collect::<serde_json::Map<_, _>>().into();
        report["states"] = json!(analysis);
        report["files"] = json!([picture.display().to_string()]);
        say!("{report}");
        return Ok(());
    }
    let mut rows = table(&["told by", ">bits a character", ">perplexity"]);
    for (by, bits) in bits {
        rows.add_row([by.to_owned(), format!("{bits:.3}"), format!("{:.2}", bits.exp2())]);
    }
    say!("{rows}");
    say!(
        "{}, {name}: {} characters, the network from a zero state each {window}",
        tested.other().unwrap_or(&settings.data),
        told.len() - 1
    );
    say!("{analysis}");
    for path in [&picture].into_iter().chain(tested.arguments.states.as_ref()) {
        say!("wrote {}", path.display());
    }
    Ok(())
}
