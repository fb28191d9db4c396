//! From text to tokens and back: a byte each, or as a `tokenizer.json` says.

use std::path::Path;

use lab_harness::Error;

/// Makes tokens of texts. What is read from a `tokenizer.json`, or trained here, needs the feature `tokenizers`.
pub enum Tokenizer {
    /// A token is a byte.
    Bytes,
    /// As the crate `tokenizers` has it.
    #[cfg(feature = "tokenizers")]
    Json(Box<tokenizers::Tokenizer>),
}

/// Gives the bytes of the next token, as far as they make whole characters.
pub type Stream<'a> = Box<dyn FnMut(i32) -> Vec<u8> + 'a>;

#[cfg(not(feature = "tokenizers"))]
fn missing<T>(what: String) -> Result<T, Error> {
    Err(Error::bad(what, "a lab with the feature 'tokenizers'", "one without"))
}

impl Tokenizer {
    /// Reads a `tokenizer.json`.
    ///
    /// # Errors
    /// It cannot be read, or is none; the feature is not there.
    #[cfg(feature = "tokenizers")]
    pub fn read(path: &Path) -> Result<Self, Error> {
        let failed = |message: String| Error::File { path: path.display().to_string(), message };
        let text = lab_device::emulator::read_text(path).map_err(|e| failed(e.to_string()))?;
        let read = tokenizers::Tokenizer::from_bytes(text);
        let read = read.map_err(|e| failed(format!("expected a tokenizer.json: {e}")))?;
        Ok(Self::Json(Box::new(read)))
    }

    /// As with the feature.
    ///
    /// # Errors
    /// The feature is not there.
    #[cfg(not(feature = "tokenizers"))]
    pub fn read(path: &Path) -> Result<Self, Error> {
        missing(format!("tokenizer {}", path.display()))
    }

    /// Learns a byte pair encoding of so many tokens, 256 of which are the bytes: no text is without tokens. Words are parted as GPT-2 does
    /// it. The same for the same texts.
    ///
    /// # Errors
    /// Fewer tokens than bytes; a text is not UTF-8; the feature is not there.
    #[cfg(feature = "tokenizers")]
    pub fn train(texts: &[Vec<u8>], vocabulary: usize) -> Result<Self, Error> {
        use tokenizers::models::TrainerWrapper;
        use tokenizers::models::bpe::{BPE, BpeTrainer};
        use tokenizers::pre_tokenizers::byte_level::ByteLevel;
        const MOST: usize = 1 << 20;
        if !(256..=MOST).contains(&vocabulary) {
            return Err(Error::bad("tokens of a BPE", format!("256 to {MOST}"), vocabulary));
        }
        let texts: Vec<&str> = texts.iter().map(|text| as_text(text)).collect::<Result<_, _>>()?;
        let trainer = BpeTrainer::builder()
            .vocab_size(vocabulary)
            .show_progress(false)
            .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
            .build();
        let mut all = tokenizers::Tokenizer::new(BPE::default());
        all.with_pre_tokenizer(Some(ByteLevel::new(false, true, true)));
        all.with_decoder(Some(ByteLevel::default()));
        // Line by line: a training holds words, and no line's end is within one.
        let lines = texts.iter().flat_map(|text| text.split_inclusive('\n'));
        all.train(&mut TrainerWrapper::BpeTrainer(trainer), lines.collect::<Vec<_>>().into_iter())
            .map_err(|e| Error::bad("texts", "what a BPE can be trained on", e))?;
        Ok(Self::Json(Box::new(all)))
    }

    /// As with the feature.
    ///
    /// # Errors
    /// The feature is not there.
    #[cfg(not(feature = "tokenizers"))]
    pub fn train(_: &[Vec<u8>], vocabulary: usize) -> Result<Self, Error> {
        missing(format!("BPE of {vocabulary} tokens"))
    }

    /// Its `tokenizer.json`; none for bytes.
    pub fn json(&self) -> Option<String> {
        match self {
            Self::Bytes => None,
            #[cfg(feature = "tokenizers")]
            Self::Json(of) => Some(of.to_string(true).expect("JSON")),
        }
    }

    /// Its tokens are below it.
    pub fn vocabulary(&self) -> usize {
        match self {
            Self::Bytes => 256,
            #[cfg(feature = "tokenizers")]
            Self::Json(of) => {
                of.get_vocab(true).values().max().map_or(1, |largest| *largest as usize + 1)
            }
        }
    }

    /// The tokens of a text.
    ///
    /// # Errors
    /// It is not UTF-8, which bytes need not be.
    pub fn encode(&self, text: &[u8]) -> Result<Vec<i32>, Error> {
        match self {
            Self::Bytes => Ok(text.iter().map(|&byte| i32::from(byte)).collect()),
            #[cfg(feature = "tokenizers")]
            Self::Json(of) => {
                let encoded = of.encode_fast(as_text(text)?, false);
                let encoded =
                    encoded.map_err(|e| Error::bad("text", "what the tokenizer takes", e))?;
                Ok(encoded.get_ids().iter().map(|&id| id as i32).collect())
            }
        }
    }

    /// What gives the bytes of tokens as they come.
    pub fn stream(&self) -> Stream<'_> {
        match self {
            Self::Bytes => Box::new(|id| u8::try_from(id).map_or(Vec::new(), |byte| vec![byte])),
            #[cfg(feature = "tokenizers")]
            Self::Json(of) => {
                let mut stream = of.decode_stream(false);
                Box::new(move |id| match stream.step(id as u32) {
                    Ok(Some(text)) => text.into_bytes(),
                    // Not a whole character yet.
                    Ok(None) => Vec::new(),
                    // A token that the tokenizer does not have says nothing.
                    Err(_) => Vec::new(),
                })
            }
        }
    }
}

#[cfg(feature = "tokenizers")]
fn as_text(bytes: &[u8]) -> Result<&str, Error> {
    std::str::from_utf8(bytes).map_err(|e| {
        let at = e.valid_up_to();
        Error::bad("text", "UTF-8", format!("byte {:#04x} at {at}", bytes[at]))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_tokens() {
        let bytes = Tokenizer::Bytes;
        assert_eq!((bytes.vocabulary(), bytes.json()), (256, None));
        assert_eq!(bytes.encode(b"a\xff").unwrap(), [97, 255]);
        let mut stream = bytes.stream();
        assert_eq!([97, 255, 256, -1].map(&mut *stream), [vec![97], vec![255], vec![], vec![]]);
    }

    #[cfg(not(feature = "tokenizers"))]
    #[test]
    fn what_needs_the_feature_says_so() {
        let said = Tokenizer::read(Path::new("t.json")).err().unwrap().to_string();
        let end = "expected a lab with the feature 'tokenizers', got one without";
        assert_eq!(said, format!("tokenizer t.json: {end}"));
        let said = Tokenizer::train(&[], 300).err().unwrap().to_string();
        assert_eq!(said, format!("BPE of 300 tokens: {end}"));
    }

    #[cfg(feature = "tokenizers")]
    #[test]
    fn a_bpe_is_learnt_and_gives_every_text_back() {
        let text = "low lower lowest, new newer newest: ältere Wörter\n".repeat(9).into_bytes();
        let of = || Tokenizer::train(std::slice::from_ref(&text), 300).unwrap();
        let bpe = of();
        assert_eq!(bpe.json(), of().json(), "the same for the same text");
        assert!((257..=300).contains(&bpe.vocabulary()), "{}", bpe.vocabulary());
        let ids = bpe.encode(&text).unwrap();
        assert!(ids.len() * 2 < text.len(), "{} tokens of {} bytes", ids.len(), text.len());
        // Also what it has never seen.
        for text in [&text[..], "日本 \u{1f980} \n\n  x".as_bytes()] {
            let ids = bpe.encode(text).unwrap();
            let mut stream = bpe.stream();
            let back: Vec<u8> = ids.into_iter().flat_map(&mut *stream).collect();
            assert_eq!(String::from_utf8_lossy(&back), String::from_utf8_lossy(text));
        }
        let said = bpe.encode(b"ab\xff").unwrap_err().to_string();
        assert_eq!(said, "text: expected UTF-8, got byte 0xff at 2");
        let said = Tokenizer::train(&[], 255).err().unwrap().to_string();
        assert_eq!(said, "tokens of a BPE: expected 256 to 1048576, got 255");
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tokenizer.json");
        std::fs::write(&path, bpe.json().unwrap()).unwrap();
        let again = Tokenizer::read(&path).unwrap();
        assert_eq!(again.encode(&text).unwrap(), bpe.encode(&text).unwrap());
        std::fs::write(&path, "{}").unwrap();
        let said = Tokenizer::read(&path).err().unwrap().to_string();
        assert!(said.contains("tokenizer.json: expected a tokenizer.json: "), "{said}");
    }
}
