# The answers of a table of responses as a list, item by item.

"""
    Answers(n_students, starts, students, signs)

A table of signs, items x students, that keeps its answers alone, five bytes each: those of item k are number `starts[k]`
to `starts[k + 1] - 1`, in the order of the students, +1 right and -1 wrong. All other cells are 0.

Throws an `ArgumentError` if the arrays do not belong together.
"""
struct Answers <: AbstractMatrix{Int8}
    n_students::Int
    starts::Vector{Int}
    students::Vector{Int32}
    signs::Vector{Int8}

    function Answers(n_students::Int, starts::Vector{Int}, students::Vector{Int32}, signs::Vector{Int8})
        n = length(signs)
        length(starts) > 1 && first(starts) == 1 && last(starts) == n + 1 == length(students) + 1 && issorted(starts) ||
            throw(ArgumentError("Answers: starts, students and signs do not belong together."))
        # `lt=<=`: the same student twice is out of order, too
        in_order(k) = issorted(view(students, starts[k]:(starts[k + 1] - 1)); lt=(<=))
        all(in(1:n_students), students) && all(in_order, 1:(length(starts) - 1)) ||
            throw(ArgumentError("Answers: the students of an item must be numbers from 1 to $n_students, in order."))
        return new(n_students, starts, students, signs)
    end
end

"""The cells of a table of signs that are not 0."""
function Answers(table::AbstractMatrix)
    cells = findall(!iszero, transpose(table))
    starts = [1; 1 .+ cumsum(vec(count(!iszero, table; dims=2)))]
    return Answers(size(table, 2), starts, Int32[c[1] for c in cells], Int8[table[c[2], c[1]] for c in cells])
end

Base.size(answers::Answers) = (length(answers.starts) - 1, answers.n_students)

function Base.getindex(answers::Answers, item::Int, student::Int)
    @boundscheck checkbounds(answers, item, student)
    (; starts, students, signs) = answers
    places = starts[item]:(starts[item + 1] - 1)
    place = starts[item] - 1 + searchsortedfirst(view(students, places), student)
    return place in places && students[place] == student ? signs[place] : Int8(0)
end
