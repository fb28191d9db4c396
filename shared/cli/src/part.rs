//! A part of a long list, the same each time: `--part 1/4`.

use std::str::FromStr;

use lab_harness::Error;

/// One of so many parts of a list. Each entry is in one of them; but a list that has fewer entries than
/// there are parts has one in each part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// From 1.
    number: usize,
    of: usize,
}

impl Part {
    /// Whether the entry at `index` of a list of `len` is in this part. Of each `of` neighbours one is, and
    /// not always the one at the same place: lists go through types or shapes in turn.
    pub(crate) fn takes(self, index: usize, len: usize) -> bool {
        let wanted = self.number - 1;
        if len < self.of {
            index == wanted % len
        } else {
            (index + index / self.of) % self.of == wanted
        }
    }

    /// The entries of a list that are in this part; all of them where there is none.
    pub(crate) fn filter<T>(part: Option<Self>, all: Vec<T>) -> Vec<T> {
        let len = all.len();
        let taken = |index| part.is_none_or(|p| p.takes(index, len));
        all.into_iter().enumerate().filter(|(index, _)| taken(*index)).map(|(_, one)| one).collect()
    }
}

impl FromStr for Part {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let read = || {
            let (number, of) = text.split_once('/')?;
            let part = Self { number: number.parse().ok()?, of: of.parse().ok()? };
            (1..=part.of).contains(&part.number).then_some(part)
        };
        read().ok_or_else(|| {
            Error::bad("part", "one of several, such as 1/4 to 4/4", format!("'{text}'"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(text: &str, len: usize) -> Vec<usize> {
        Part::filter(Some(text.parse().unwrap()), (0..len).collect())
    }

    #[test]
    fn parts_are_a_whole_and_none_is_empty() {
        for (of, len) in (1..7).flat_map(|of| (1..30).map(move |len| (of, len))) {
            let parts: Vec<Vec<usize>> =
                (1..=of).map(|number| taken(&format!("{number}/{of}"), len)).collect();
            assert!(parts.iter().all(|p| !p.is_empty()), "{of} parts of {len}: {parts:?}");
            let mut all = parts.concat();
            all.sort_unstable();
            if len >= of {
                assert_eq!(all, (0..len).collect::<Vec<_>>(), "{of} parts of {len}");
            }
            all.dedup();
            assert_eq!(all.len(), len, "{of} parts of {len}");
        }
        assert!(Part::filter(Some("1/2".parse().unwrap()), Vec::<u8>::new()).is_empty());
        assert_eq!(Part::filter(None, vec![1, 2, 3]), [1, 2, 3]);
    }

    #[test]
    fn a_part_does_not_keep_step_with_a_list_that_takes_turns() {
        assert_eq!(taken("1/2", 8), [0, 3, 4, 7]);
        assert_eq!(taken("2/2", 8), [1, 2, 5, 6]);
        assert_eq!(taken("4/4", 10), [3, 6, 9]);
        assert_eq!((taken("3/4", 2), taken("4/4", 2)), (vec![0], vec![1]));
    }

    #[test]
    fn what_is_no_part_is_refused() {
        for text in ["", "1", "0/4", "5/4", "1/0", "1/4/4", "a/b", "-1/4"] {
            let message = text.parse::<Part>().unwrap_err().to_string();
            assert!(message.contains(&format!("'{text}'")), "{message}");
        }
    }
}
