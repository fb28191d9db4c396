//! A language model of one xLSTM block learns a sentence, and says it:
//!
//! ```sh
//! cargo run -p lab-lm --example sentence
//! ```

use lab_device::{Device, Selector};
use lab_lm::{Config, Model, Sampler, Schedule, Tokens, Trainer, Writer};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // ANCHOR: model
    let device = Device::open(Selector::from_env()?)?;
    let data = Tokens::of_bytes("the cat sat on the mat. ".repeat(9).as_bytes());
    let model = Model::xlstm(128, 32, 1, 1); // bytes, width, heads, blocks
    let schedule = Schedule::constant(0.03);
    let config = Config { window: 24, batch: 2, schedule, ..Config::default() };
    let mut trainer = Trainer::new(&device, model, config, &data, &data.starts(24))?;
    for epoch in 1..=8 {
        println!("epoch {epoch}: loss {:.3}", trainer.epoch()?.loss);
    }
    let mut writer = Writer::new(&device, model, &trainer.parameters()?, config.dtype)?;
    let (mut said, mut best) = (vec![i32::from(b't')], Sampler::new(0.0, 0, 1.0, 1.0, 0)?);
    while let Some(&last) = said.last().filter(|_| said.len() < 24) {
        said.push(best.draw(&writer.next(last)?, &said));
    }
    println!("{}", said.iter().map(|&byte| byte as u8 as char).collect::<String>());
    // ANCHOR_END: model
    Ok(())
}
