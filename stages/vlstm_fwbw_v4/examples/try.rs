use lab_harness::qkv::sizes;
use lab_harness::*;
use lab_device::DType;
use vlstm_fwbw_v4::*;
fn main() {
    let device = suite::emulator().unwrap();
    let mut args = std::env::args().skip(1);
    let versions: [&'static dyn Version; 2] = [&WALKS, &TOGETHER];
    let v = versions[args.next().unwrap().parse::<usize>().unwrap()];
    for shape in [[1,1,1,16,16],[1,1,64,64,64],[1,1,65,48,16],[2,1,200,64,64],[1,1,600,16,16],[1,1,150,112,80],[1,1,330,80,256],[1,2,400,128,128]] {
        for dtype in [DType::BF16, DType::F16] {
            let problem = Problem::new(sizes(shape), dtype);
            let inputs = v.inputs(&problem);
            let options = Options::default();
            match run(v, &device, &inputs, &options) {
                Err(e) => println!("{shape:?} {dtype}: {}", e.to_string().chars().take(1500).collect::<String>()),
                Ok(out) => {
                    let c = compare(v, &inputs, &out, &options, dtype);
                    println!("{shape:?} {dtype}: {}", c.iter().map(|c| format!("{} {:.1e}{}", c.name, c.relative_error, if c.passed() {""} else {"!"})).collect::<Vec<_>>().join("  "));
                }
            }
        }
    }
}
