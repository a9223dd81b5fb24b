"""All correlations: C is lower triangular, p = d + d(d+1)/2 (paper, section 2.3)."""
struct FullRank{B<:BaseDistribution} <: Family
    base::B
end

FullRank() = FullRank(Gaussian())

scale_shape(::FullRank, layout::Layout) = (dim(layout), 0, 0)
