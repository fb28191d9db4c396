//! What must hold of training, on every device.

pub(crate) mod follow;
pub(crate) mod outputs;
pub(crate) mod runs;
pub(crate) mod scale;
pub(crate) mod stops;

use lab_reference::lstm::Network;

use super::{Config, Data, Model, Schedule};

/// Two waves of unlike lengths, side by side.
fn waves(rows: usize) -> Data {
    let row = |t: usize| [(t as f64 * 0.7).sin(), (t as f64 * 0.31).cos() * 0.5];
    Data::Series { values: (0..rows).flat_map(row).collect(), columns: 2 }
}

fn text(rows: usize) -> Data {
    let token = |t: usize| [0, 1, 2, 1, 3][t % 5] + i32::from(t % 7 == 3);
    Data::Text { tokens: (0..rows).map(token).collect(), classes: 5 }
}

/// A small training, and what it is of: ten windows in threes.
fn series(config: Config) -> (Model, Config, Data, Vec<usize>) {
    let config = Config { window: 4, batch: 3, schedule: Schedule::constant(0.05), ..config };
    let data = waves(14);
    let starts = data.starts(4, 1);
    (Model::forecast(Network { layers: 2, ..Network::lstm(2, 5) }), config, data, starts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::training::trainer::order;

    #[test]
    fn every_epoch_has_all_windows_in_an_order_of_its_own() {
        let starts: Vec<usize> = (0..100).map(|n| 3 * n).collect();
        let config = Config { seed: 9, ..Config::default() };
        let all: Vec<Vec<usize>> = (0..4).map(|epoch| order(&starts, &config, epoch)).collect();
        for (n, order) in all.iter().enumerate() {
            assert!(all[..n].iter().all(|other| other != order));
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, starts);
        }
        assert_eq!(order(&starts, &config, 2), all[2]);
        assert_ne!(order(&starts, &Config { seed: 10, ..config }, 2), all[2]);
        assert_eq!(order(&starts, &Config { shuffle: false, ..config }, 2), starts);
    }
}
