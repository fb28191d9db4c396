//! The text of a sequence: whole characters of bytes as they come, up to a string that ends it.

/// What has come and is not told yet.
#[derive(Debug)]
pub(crate) struct Text {
    stops: Vec<String>,
    /// The beginning of a character.
    bytes: Vec<u8>,
    /// What may be the beginning of a string that ends the text.
    held: String,
}

impl Text {
    /// One that ends before any of these strings.
    pub(crate) fn new(stops: Vec<String>) -> Self {
        Self { stops, bytes: Vec::new(), held: String::new() }
    }

    /// Takes bytes; what can be told of the text, and whether it ends here. Bytes of no character become U+FFFD, as
    /// [`String::from_utf8_lossy`] has it.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> (String, bool) {
        self.bytes.extend(bytes);
        let mut taken = 0;
        loop {
            match std::str::from_utf8(&self.bytes[taken..]) {
                Ok(text) => {
                    self.held.push_str(text);
                    taken = self.bytes.len();
                    break;
                }
                Err(error) => {
                    let valid = taken + error.valid_up_to();
                    self.held.push_str(&String::from_utf8_lossy(&self.bytes[taken..valid]));
                    taken = valid;
                    let Some(wrong) = error.error_len() else { break };
                    self.held.push(char::REPLACEMENT_CHARACTER);
                    taken += wrong;
                }
            }
        }
        self.bytes.drain(..taken);
        self.tell()
    }

    fn tell(&mut self) -> (String, bool) {
        let first = self.stops.iter().filter_map(|stop| self.held.find(stop.as_str())).min();
        if let Some(end) = first {
            self.held.truncate(end);
            return (std::mem::take(&mut self.held), true);
        }
        let keep = self.stops.iter().map(|stop| begun(&self.held, stop)).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - keep);
        (std::mem::replace(&mut self.held, rest), false)
    }

    /// What was held back, where the text ends for another reason.
    pub(crate) fn finish(&mut self) -> String {
        let rest = std::mem::take(&mut self.bytes);
        std::mem::take(&mut self.held) + &String::from_utf8_lossy(&rest)
    }
}

/// Bytes at the end of a text that a string may begin with.
fn begun(text: &str, stop: &str) -> usize {
    let most = text.len().min(stop.len() - 1);
    let fits = |&n: &usize| {
        text.is_char_boundary(text.len() - n) && stop.starts_with(&text[text.len() - n..])
    };
    (1..=most).rev().find(fits).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(stops: &[&str], pieces: &[&[u8]]) -> (Vec<String>, bool) {
        let mut text = Text::new(stops.iter().map(|s| (*s).to_owned()).collect());
        let mut all = Vec::new();
        for piece in pieces {
            let (told, ends) = text.push(piece);
            all.push(told);
            if ends {
                return (all, true);
            }
        }
        all.push(text.finish());
        (all, false)
    }

    #[test]
    fn characters_are_whole_and_others_replaced() {
        let all: Vec<u8> = "aä€🦀".bytes().chain([0xff, b'b', 0xe2, 0x82]).collect();
        let pieces: Vec<&[u8]> = all.chunks(1).collect();
        let (told, ends) = told(&[], &pieces);
        assert!(!ends);
        assert_eq!(told.concat(), String::from_utf8_lossy(&all));
        assert_eq!(told[..3], ["a", "", "ä"]);
    }

    #[test]
    fn a_text_ends_before_a_stop_that_comes_in_pieces() {
        let pieces: &[&[u8]] = &[b"one S", b"TO", b"P two"];
        assert_eq!(
            told(&["STOP"], pieces),
            (vec!["one ".into(), String::new(), String::new()], true)
        );
        let pieces: &[&[u8]] = &[b"one S", b"TO", b"RM"];
        let (all, ends) = told(&["STOP"], pieces);
        assert_eq!((all.concat(), ends), ("one STORM".into(), false));
        // The first in the text counts, not the first of the list.
        assert_eq!(told(&["c", "b"], &[b"abc"]), (vec!["a".into()], true));
        assert_eq!(told(&["ab"], &[b"aa"]).0, ["a", "a"]);
        assert_eq!(
            told(&["äö"], &["ä".as_bytes(), "ö".as_bytes()]),
            (vec![String::new(), String::new()], true)
        );
    }
}
