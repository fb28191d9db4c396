//! Series, texts, how they are cut, and what is said of them: nothing here needs a device.
#![allow(missing_docs)]

// As the library has it, which shows none of it.
#[path = "../src/data/algebra.rs"]
mod algebra;
#[path = "data/algebra_tests.rs"]
mod algebra_tests;

mod series {
    use std::path::Path;

    use lab_lstm::data::Series;

    fn read(text: &[u8], column: Option<&str>) -> Result<Series, String> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s.csv");
        std::fs::write(&path, text).unwrap();
        let shown = path.display().to_string();
        Series::from_csv(&path, column).map_err(|e| e.to_string().replace(&shown, "s.csv"))
    }

    #[test]
    fn a_column_by_its_name_or_because_it_is_the_only_one() {
        let two = b"day,load\n1, 2.5\n2,\"-3e2\"\n";
        let expected = Series { name: "load".into(), values: vec![2.5, -300.0] };
        assert_eq!(read(two, Some("load")), Ok(expected));
        assert_eq!(read(b"\xEF\xBB\xBFload\r\n7\r\n", None).unwrap().values, [7.0]);
    }

    #[test]
    fn what_is_wrong_is_said_with_its_place() {
        for (text, column, said) in [
            (&b""[..], None, "s.csv: expected a line of column names, got an empty file"),
            (b"a\n", None, "s.csv: column 'a': expected numbers, got no row"),
            (b"a,b\n1,2\n", None, "--column: expected a column of s.csv: 'a', 'b', got none"),
            (b"a,b\n1,2\n", Some("c"), "--column: expected a column of s.csv: 'a', 'b', got 'c'"),
            (
                b"a,a\n1,2\n",
                Some("a"),
                "--column: expected a column of s.csv: 'a', 'a', got 'a', which several have",
            ),
            (
                b"a,b\n1,2\n3,NaN\n",
                Some("b"),
                "s.csv: row 2, line 3, column 'b': expected a finite number, got 'NaN'",
            ),
            (
                b"a,b\n1,\"x\ny\"\n3,-inf\n",
                Some("b"),
                "s.csv: row 1, line 2, column 'b': expected a finite number, got 'x\\ny'",
            ),
            (
                b"a,b\n1,\n",
                Some("b"),
                "s.csv: row 1, line 2, column 'b': expected a finite number, got nothing",
            ),
            (
                b"a,b\n1,2\n3\n",
                Some("b"),
                "s.csv: line 3: expected 2 fields as in the first, got 1",
            ),
            (
                b"a,b\n1,2\n3,\xFF\n",
                Some("a"),
                "s.csv: line 3, field 2: expected UTF-8, got other bytes",
            ),
        ] {
            assert_eq!(read(text, column).unwrap_err(), said);
        }
        let missing = Series::from_csv(Path::new("no/such.csv"), None).unwrap_err().to_string();
        assert!(missing.starts_with("no/such.csv: No such file"), "{missing}");
        let directory = tempfile::tempdir().unwrap();
        assert!(Series::from_csv(directory.path(), None).is_err());
    }
}

mod split {
    use lab_lstm::data::{Errors, Scale, Split, Windows};

    #[test]
    fn parts_follow_each_other_and_leave_nothing_out() {
        let split = Split::chronological(1000, 0.15, 0.15).unwrap();
        let expected = Split { train: 0..700, validation: 700..850, test: 850..1000 };
        assert_eq!(split, expected);
        for len in [1, 2, 3, 7, 10, 101] {
            let s = Split::chronological(len, 0.1, 0.2).unwrap();
            let ends = (s.train.start, s.train.end, s.validation.end, s.test.end);
            assert_eq!(ends, (0, s.validation.start, s.test.start, len));
            assert!(!s.train.is_empty());
        }
        for (validation, test) in [(0.5, 0.5), (-0.1, 0.1), (f64::NAN, 0.1), (0.0, 1.0)] {
            assert!(Split::chronological(10, validation, test).is_err());
        }
        assert!(Split::chronological(0, 0.1, 0.1).is_err());
    }

    #[test]
    fn windows_of_a_part_reach_back_and_never_ahead() {
        let values: Vec<f64> = (0..10).map(f64::from).collect();
        let first = Windows::new(&values, 3, 0..6).unwrap();
        assert_eq!((first.len(), first.get(0)), (3, (&values[0..3], 3.0)));
        assert_eq!(first.get(2), (&values[2..5], 5.0));
        let second = Windows::new(&values, 3, 6..10).unwrap();
        assert_eq!((second.len(), second.get(0)), (4, (&values[3..6], 6.0)));
        assert_eq!(second.targets(), &values[6..10]);
        let last = |window: &[f64]| *window.last().unwrap();
        assert_eq!(second.errors(last), Errors { rmse: 1.0, mae: 1.0 });
        let short = Windows::new(&values, 10, 0..10).unwrap_err().to_string();
        let said = "length of the series: expected more than the 10 values of a window, got 10";
        assert_eq!(short, said);
        assert!(Windows::new(&values, 0, 0..10).is_err());
        assert!(Windows::new(&[], 1, 0..0).is_err());
    }

    #[test]
    fn errors_are_those_of_the_formula() {
        let errors = Errors::of(&[1.0, 2.0], &[4.0, -2.0]);
        assert_eq!(errors, Errors { rmse: 12.5f64.sqrt(), mae: 3.5 });
        assert!(Errors::of(&[f64::NAN], &[1.0]).rmse.is_nan());
    }

    #[test]
    fn the_scale_is_that_of_the_training_part_and_goes_back() {
        let scale = Scale::of(&[1.0, 3.0, 5.0, 7.0]).unwrap();
        assert_eq!(scale, Scale { mean: 4.0, deviation: 5f64.sqrt() });
        assert!((scale.original(scale.scaled(-11.0)) + 11.0).abs() < 1e-12);
        let constant = Scale::of(&[0.1; 7]).unwrap_err().to_string();
        let said = "training part of the series: expected values that differ, got 0.1, 7 times";
        assert_eq!(constant, said);
        assert!(Scale::of(&[1e300, -1e300]).is_err());
        assert!(Scale::of(&[0.0, 0.0]).is_err());
        // Small against its mean, but there.
        assert!(Scale::of(&[1e6, 1e6 + 1e-3]).is_ok());
    }
}

mod baseline {
    use lab_lstm::data::{Errors, Linear, Series, Windows, free_run, persistence};

    /// x_n = 0.5 x_{n−1} − 0.3 x_{n−2} + 2, and what drives it.
    fn driven(len: usize, noise: f64) -> Vec<f64> {
        let mut values = vec![1.0, -2.0];
        for n in 2..len {
            let from_outside = noise * ((n * n) as f64 * 0.7).sin();
            values.push(0.5 * values[n - 1] - 0.3 * values[n - 2] + 2.0 + from_outside);
        }
        values
    }

    #[test]
    fn the_weights_of_a_recurrence_are_found() {
        // More windows than a chunk.
        let values = driven(3000, 0.0);
        for len in [6, 40, 3000] {
            let windows = Windows::new(&values[..len], 2, 0..len).unwrap();
            let linear = Linear::fit(&windows).unwrap();
            let found = [linear.weights[0], linear.weights[1], linear.constant];
            for (found, expected) in found.into_iter().zip([-0.3, 0.5, 2.0]) {
                assert!((found - expected).abs() < 1e-9, "{len}: {linear:?}");
            }
        }
    }

    #[test]
    fn no_other_weights_have_smaller_squares() {
        let values = driven(2500, 1.0);
        let windows = Windows::new(&values, 3, 0..values.len()).unwrap();
        let fitted = Linear::fit(&windows).unwrap();
        let least = windows.errors(|w| fitted.next(w)).rmse;
        for at in 0..4 {
            for by in [-1e-3, 1e-3] {
                let mut other = fitted.clone();
                match other.weights.get_mut(at) {
                    Some(weight) => *weight += by,
                    None => other.constant += by,
                }
                assert!(windows.errors(|w| other.next(w)).rmse > least, "{at} {by}");
            }
        }
    }

    #[test]
    fn fewer_windows_than_weights_are_fitted_exactly() {
        let values = driven(8, 1.0);
        let windows = Windows::new(&values, 6, 0..8).unwrap();
        let linear = Linear::fit(&windows).unwrap();
        assert!(windows.errors(|w| linear.next(w)).rmse < 1e-9);
    }

    #[test]
    fn a_sine_runs_on_for_long() {
        let sine = Series::sine(1400, 1.0, 0).values;
        let windows = Windows::new(&sine, 20, 0..1000).unwrap();
        let linear = Linear::fit(&windows).unwrap();
        let run = free_run(&sine[980..1000], 400, |w| linear.next(w));
        assert!(Errors::of(&run, &sine[1000..]).rmse < 1e-6);
        let still = free_run(&sine[980..1000], 400, persistence);
        assert!(still.iter().all(|v| *v == sine[999]));
    }
}

mod text {
    use std::path::Path;

    use lab_lstm::data::{Vocabulary, read_text};

    #[test]
    fn the_most_frequent_first_and_of_equals_the_first() {
        let vocabulary = Vocabulary::of("banana bun\n").unwrap();
        assert_eq!(vocabulary.characters(), ['a', 'n', 'b', ' ', 'u', '\n']);
        let numbers = vocabulary.encode("prompt", "nub").unwrap();
        assert_eq!(numbers, [1, 4, 2]);
        assert_eq!(vocabulary.decode(&numbers), "nub");
        assert_eq!(Vocabulary::new(vocabulary.characters().to_vec()).unwrap(), vocabulary);
    }

    #[test]
    fn a_character_that_is_not_known_is_said_with_its_place() {
        let vocabulary = Vocabulary::of("ab\n").unwrap();
        let error = vocabulary.encode("--prompt", "ab\nbé").unwrap_err().to_string();
        let said = "--prompt: expected the 3 characters that the model knows, got 'é' at line 2, \
                    column 2";
        assert_eq!(error, said);
        for few in ["", "aaa"] {
            assert!(Vocabulary::of(few).is_err(), "{few}");
        }
        assert!(Vocabulary::new(vec!['a', 'b', 'a']).is_err());
    }

    #[test]
    fn bytes_that_are_no_text_are_said_with_their_place() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("t.txt");
        let read = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            read_text(&path).map_err(|e| e.to_string())
        };
        assert_eq!(read("ä\nb".as_bytes()).unwrap(), "ä\nb");
        let cut = read(b"one\ntwo\xC3").unwrap_err();
        assert!(cut.ends_with("expected UTF-8, got byte 0xC3 at offset 7, line 2"), "{cut}");
        assert!(read(b"").unwrap_err().ends_with("expected a text, got an empty file"));
        assert!(read_text(Path::new("no/such.txt")).is_err());
    }
}

mod sample {
    use lab_lstm::data::{Choice, probabilities};
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    const LOGITS: [f64; 4] = [0.0, 2.0, 1.0, 2.0];

    fn shares(choice: Choice) -> [f64; 4] {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let mut shares = [0.0; 4];
        for _ in 0..20_000 {
            shares[choice.sample(&LOGITS, &mut rng).unwrap()] += 1.0 / 20_000.0;
        }
        shares
    }

    #[test]
    fn tokens_are_as_frequent_as_likely() {
        for temperature in [0.5, 1.0, 3.0] {
            let scaled = LOGITS.map(|l| l / temperature);
            let found = shares(Choice::new(temperature, None).unwrap());
            for (found, expected) in found.into_iter().zip(probabilities(&scaled)) {
                assert!((found - expected).abs() < 0.015, "{found} {expected}");
            }
        }
    }

    #[test]
    fn the_likeliest_alone() {
        assert_eq!(shares(Choice::new(0.0, None).unwrap())[1], shares_of_one());
        assert_eq!(shares(Choice::new(9.0, Some(1)).unwrap())[1], shares_of_one());
        let two = shares(Choice::new(1.0, Some(2)).unwrap());
        assert_eq!((two[0], two[2]), (0.0, 0.0));
        assert!((two[1] - 0.5).abs() < 0.015);
    }

    /// 1 as it comes out of adding up.
    fn shares_of_one() -> f64 {
        (0..20_000).fold(0.0, |sum, _| sum + 1.0 / 20_000.0)
    }

    #[test]
    fn what_cannot_be_chosen_from_is_refused() {
        assert!(Choice::new(-1.0, None).is_err());
        assert!(Choice::new(f64::NAN, None).is_err());
        assert!(Choice::new(1.0, Some(0)).is_err());
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let choice = Choice::new(1.0, None).unwrap();
        let error = choice.sample(&[0.0, f64::NAN], &mut rng).unwrap_err().to_string();
        assert_eq!(error, "logits: expected finite numbers, got NaN of token 1");
        // Far apart, in f64 too.
        assert_eq!(choice.sample(&[-1e300, 1e300], &mut rng).unwrap(), 1);
    }
}

mod states {
    use lab_lstm::data::StateSummary;

    #[test]
    fn units_are_counted_by_what_they_do() {
        // One that swings, its double, one that is shut, one that stands still, one apart.
        let row = |n: usize| {
            let t = n as f64 * 0.37;
            [0.4 * t.sin(), -0.8 * t.sin(), 0.99, 0.3, 0.5 * (2.3 * t).cos()]
        };
        let states: Vec<f64> = (0..200).flat_map(row).collect();
        let summary = StateSummary::of(&states, 5);
        let expected = StateSummary { steps: 200, units: 5, still: 2, saturated: 1, directions: 2 };
        assert_eq!(summary, expected);
        // Fewer steps than units.
        assert_eq!(StateSummary::of(&states[..10], 5).steps, 2);
        assert_eq!(StateSummary::of(&states[..10], 5).directions, 1);
        assert_eq!(StateSummary::of(&[0.5; 5], 5).directions, 0);
    }
}
