# Stepsize schedules: a number for each update, counted from 1.

"""`initial * factor^k` after k full stages of `every` updates; with a factor of 1, a fixed stepsize."""
struct StepDecay
    initial::Float64
    factor::Float64
    every::Int
end

StepDecay(stepsize::Real) = StepDecay(stepsize, 1, 1)

(schedule::StepDecay)(iteration::Int) = schedule.initial * schedule.factor^((iteration - 1) ÷ schedule.every)
