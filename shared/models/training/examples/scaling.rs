//! Prints the tables of the book's page on several GPUs: how far data parallel training scales.

use lab_training::scaling::{HOSTS_OF_EIGHT, model_of_162m, table};

fn main() {
    let step = model_of_162m();
    println!("16 windows of 2048 tokens a GPU:\n\n{}", table(&step, &HOSTS_OF_EIGHT, None));
    println!("512 windows a step in all:\n\n{}", table(&step, &HOSTS_OF_EIGHT, Some(512)));
}
