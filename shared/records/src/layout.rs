//! How records are laid out as text: a line for each result, so that a change of one is a change of a line.

use std::io::{Result, Write};

use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

/// JSON of a record, with a line break at its end: what is nested deeper than a record's own members and theirs is on one line,
/// such as each of its results.
///
/// # Panics
/// The record is no JSON: it has a map whose keys are no text.
pub(crate) fn text<T: Serialize>(record: &T) -> String {
    let mut bytes = Vec::new();
    let lines = Lines { depth: 0, outer: PrettyFormatter::new() };
    record.serialize(&mut Serializer::with_formatter(&mut bytes, lines)).expect("a record is JSON");
    String::from_utf8(bytes).expect("JSON is text") + "\n"
}

/// A formatter that breaks lines down to [`Lines::BROKEN`] levels.
struct Lines {
    /// How many lists and objects are open.
    depth: usize,
    /// Lays out what is broken into lines.
    outer: PrettyFormatter<'static>,
}

impl Lines {
    /// The record, and its members.
    const BROKEN: usize = 2;

    fn is_broken(&self) -> bool {
        self.depth <= Self::BROKEN
    }

    /// A list or an object begins: whether it is broken into lines.
    fn open(&mut self) -> bool {
        self.depth += 1;
        self.is_broken()
    }

    /// The innermost of them ends: whether it was broken into lines.
    fn close(&mut self) -> bool {
        let was_broken = self.is_broken();
        self.depth -= 1;
        was_broken
    }
}

/// What stands before a member on one line.
fn separator(is_first: bool) -> &'static [u8] {
    if is_first { b"" } else { b", " }
}

impl Formatter for Lines {
    fn begin_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> Result<()> {
        if self.open() { self.outer.begin_array(writer) } else { writer.write_all(b"[") }
    }

    fn end_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> Result<()> {
        if self.close() { self.outer.end_array(writer) } else { writer.write_all(b"]") }
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> Result<()> {
        if self.is_broken() {
            self.outer.begin_array_value(writer, first)
        } else {
            writer.write_all(separator(first))
        }
    }

    fn end_array_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> Result<()> {
        if self.is_broken() { self.outer.end_array_value(writer) } else { Ok(()) }
    }

    fn begin_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> Result<()> {
        if self.open() { self.outer.begin_object(writer) } else { writer.write_all(b"{") }
    }

    fn end_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> Result<()> {
        if self.close() { self.outer.end_object(writer) } else { writer.write_all(b"}") }
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> Result<()> {
        if self.is_broken() {
            self.outer.begin_object_key(writer, first)
        } else {
            writer.write_all(separator(first))
        }
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> Result<()> {
        writer.write_all(b": ")
    }

    fn end_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> Result<()> {
        if self.is_broken() { self.outer.end_object_value(writer) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    #[test]
    fn each_result_is_a_line_and_reads_back() {
        let record = json!({
            "a": { "b": "x, y", "c": { "d": [1, 2.5], "e": {} } },
            "of_none": [],
            "results": [{ "m": null, "n": { "o": [] } }, { "m": "{" }],
            "tags": ["s", "t"],
        });
        let text = super::text(&record);
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), record);
        let lines = [
            "{",
            "  \"a\": {",
            "    \"b\": \"x, y\",",
            "    \"c\": {\"d\": [1, 2.5], \"e\": {}}",
            "  },",
            "  \"of_none\": [],",
            "  \"results\": [",
            "    {\"m\": null, \"n\": {\"o\": []}},",
            "    {\"m\": \"{\"}",
            "  ],",
            "  \"tags\": [",
            "    \"s\",",
            "    \"t\"",
            "  ]",
            "}",
            "",
        ];
        assert_eq!(text, lines.join("\n"));
    }
}
