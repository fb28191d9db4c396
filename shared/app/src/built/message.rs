//! What a program and this process say to each other: `compat/cudart/connection.h` has the other side.

use std::io::{Read, Result, Write};

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Question {
    /// A fat binary: its version, and its bytes. Its number.
    Register,
    /// A kernel of a module: the module's number, and its name. Its number, the most threads of a block, bytes of static
    /// shared memory; and the size of each argument.
    Kernel,
    /// Number, grid, block, dynamic shared memory, whether it is cooperative, blocks of a cluster; and the arguments.
    Launch,
    /// Bytes, and what for. The address.
    Allocate,
    /// Address, and what for.
    Release,
    /// To, from, bytes, direction. Who copies.
    Copy,
    /// To, value, bytes.
    Fill,
    /// An address. The kind of its memory, and its length.
    TypeOf,
    /// A variable of a module: the module's number, and its name. Address and size.
    Variable,
    /// To an address in a variable; and the bytes.
    Write,
    /// From an address in a variable, so many bytes.
    Read,
    /// A call was refused; and why.
    Refuse,
}

const QUESTIONS: [Question; 12] = [
    Question::Register,
    Question::Kernel,
    Question::Launch,
    Question::Allocate,
    Question::Release,
    Question::Copy,
    Question::Fill,
    Question::TypeOf,
    Question::Variable,
    Question::Write,
    Question::Read,
    Question::Refuse,
];

const WORDS: usize = 8;
const HEAD: usize = 8 + 8 * WORDS;

/// One question.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) question: Question,
    pub(crate) words: [u64; WORDS],
    pub(crate) bytes: Vec<u8>,
}

impl Request {
    /// The next one; `None` where the program has ended, or says what is none.
    pub(crate) fn read(from: &mut impl Read) -> Option<Self> {
        let mut head = [0; HEAD];
        from.read_exact(&mut head).ok()?;
        let number = |at: usize| Some(u32::from_le_bytes(head.get(at..at + 4)?.try_into().ok()?));
        let question = *QUESTIONS.get(number(0)? as usize)?;
        let mut words = [0; WORDS];
        for (word, bytes) in words.iter_mut().zip(head[8..].chunks_exact(8)) {
            *word = u64::from_le_bytes(bytes.try_into().ok()?);
        }
        let mut bytes = vec![0; number(4)? as usize];
        from.read_exact(&mut bytes).ok()?;
        Some(Self { question, words, bytes })
    }

    /// What comes with it, as a name.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}

/// An answer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reply {
    /// As `cudaError`, or the kind of memory.
    pub(crate) code: i32,
    pub(crate) words: [u64; 3],
    pub(crate) bytes: Vec<u8>,
}

impl Reply {
    pub(crate) fn code(code: i32) -> Self {
        Self { code, ..Self::default() }
    }

    pub(crate) fn write(&self, to: &mut impl Write) -> Result<()> {
        let mut all = Vec::with_capacity(HEAD + self.bytes.len());
        all.extend(self.code.to_le_bytes());
        all.extend((self.bytes.len() as u32).to_le_bytes());
        for n in 0..WORDS {
            all.extend(self.words.get(n).copied().unwrap_or(0).to_le_bytes());
        }
        all.extend(&self.bytes);
        to.write_all(&all)
    }
}
