//! What the tests of trainings share.

use std::path::Path;

use lab_harness::{Tensor, tensor};

/// The file of a checkpoint is refused, by what is wrong with it, where it is cut off, where a tensor is gone, one more or of
/// another shape or type, and with each of these changes of the header under `key`: what stands there, what is put in its
/// place, and what is said then. `refused` reads a file and tells the error.
///
/// # Panics
/// It is read, or refused by something else.
pub fn assert_damage_is_refused(
    path: &Path,
    key: &str,
    changes: &[(&str, &str, &str)],
    refused: impl Fn(&Path) -> String,
) {
    let whole = std::fs::read(path).unwrap();
    let name = path.file_name().unwrap().to_string_lossy();
    for cut in (0..whole.len()).step_by(97) {
        std::fs::write(path, &whole[..cut]).unwrap();
        assert!(refused(path).contains(&format!("{name}: expected a safetensors file")), "{cut}");
    }

    std::fs::write(path, &whole).unwrap();
    let (all, notes) = tensor::read_with_notes(path).unwrap();
    for name in all.keys() {
        let short = name.rsplit('.').next().unwrap();
        for other in [None, Some(Tensor::new(&[1, 3], &[0f32; 3])), Some(Tensor::new(&[1], &[0u8]))]
        {
            let mut wrong = all.clone();
            wrong.remove(name);
            wrong.extend(other.map(|tensor| (name.clone(), tensor)));
            tensor::write_with_notes(path, &wrong, &notes).unwrap();
            let said = refused(path);
            assert!(said.contains(short) && said.contains("expected "), "{name}: {said}");
        }
    }
    let mut more = all.clone();
    more.insert("stranger".into(), Tensor::new(&[1], &[0f32]));
    tensor::write_with_notes(path, &more, &notes).unwrap();
    assert!(refused(path).contains("'stranger'"));

    let header = &notes[key];
    for &(from, to, said) in changes {
        let wrong = header.replace(from, to);
        assert_ne!(&wrong, header, "{from}");
        tensor::write_with_notes(path, &all, &[(key.to_owned(), wrong)].into()).unwrap();
        assert!(refused(path).contains(said), "{to}: {}", refused(path));
    }
}
