"""Independent coordinates: C is diagonal, p = 2d (paper, section 2.3)."""
struct MeanField{B<:BaseDistribution} <: Family
    base::B
end

MeanField() = MeanField(Gaussian())

column_lengths(::MeanField, layout::Layout) = ones(Int, dim(layout))
