//! What a refusal looks like.

/// What is wrong with the message of a refusal of at most so many characters, if anything is.
pub fn complaint(message: &str, most: usize) -> Option<&'static str> {
    let turns = |c: char| matches!(c, '\u{200B}'..='\u{200F}' | '\u{2028}'..='\u{202E}' | '\u{2060}'..='\u{206F}' | '\u{FEFF}');
    if message.trim().is_empty() {
        return Some("an empty message");
    }
    if message.contains('\n') {
        return Some("a message of several lines");
    }
    if message.contains(|c: char| c.is_control() || turns(c)) {
        return Some("a message that a terminal acts on");
    }
    if message.chars().count() > most {
        return Some("a message that is too long");
    }
    // What stands in quotes is the input's.
    let mut own = String::new();
    let mut quote = None;
    for c in message.chars() {
        match quote {
            Some(end) if c == end => quote = None,
            None if matches!(c, '\'' | '`' | '"') => quote = Some(c),
            None => own.push(c),
            Some(_) => {}
        }
    }
    const DUMPS: [&str; 6] = ["Some(", ": None", "Err(", "Error(", "Error {", "Os {"];
    DUMPS.iter().any(|dump| own.contains(dump)).then_some("a message with debug output in it")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_short_line_in_plain_words_is_fine() {
        for (message, wrong) in [
            ("a.csv: line 3: expected 2 fields, got 1", None),
            ("--arg: expected a number, got 'Some(3)'", None),
            ("", Some("an empty message")),
            ("a\nb", Some("a message of several lines")),
            ("a\u{1b}[2J", Some("a message that a terminal acts on")),
            ("a\u{202e}", Some("a message that a terminal acts on")),
            ("0123456789 0123456789 0123456789 0123456789", Some("a message that is too long")),
            ("got Some(3)", Some("a message with debug output in it")),
        ] {
            assert_eq!(complaint(message, 40), wrong, "{message:?}");
        }
    }
}
